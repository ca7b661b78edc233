// States of an optimizer that steps shards, as parts of those of whole parameters.
#pragma once

#include <string>
#include <vector>

#include "troika/parallel/parameter_store.h"

namespace troika::parallel {

// The shard such a rank has of the state `<parameter>.<state>`, whose number of dimensions
// is `dim`: the same part as of the parameter, in blocks where each of its numbers is of `block`
// elements; of a state of no dimension (a count of steps), all, or nothing where it has no element
// of the parameter, whose steps it does not count. Throws Error(usage) for a state of none of the
// parameters.
layout::Box shard_of_state(const std::vector<layout::Box>& shards, const std::string& state,
                           int64_t dim, int64_t block = 1);

}  // namespace troika::parallel
