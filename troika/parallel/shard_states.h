// States of an optimizer that steps shards, as those of whole parameters and back.
#pragma once

#include <vector>

#include "troika/comm/group.h"
#include "troika/optim/flat_optimizer.h"
#include "troika/parallel/exchange.h"

namespace troika::parallel {

// `states` are FlatOptimizer::state() of pieces, of which rank r has `shards`, one a parameter, the
// same parameters in the same order on all ranks. Those of one dimension and another length than
// the parameter (of its blocks of elements) are put one after another. Those of no dimension
// (counts of steps) become the largest of any rank's, since a rank does not count the steps of what
// it has no element of. On every rank. Blocks.
optim::NamedTensors gather_states(const comm::Group& group, const std::vector<Shard>& shards,
                                  const optim::NamedTensors& states);

// The reverse, in the shapes of `pieces`; of states of one number for each `block` elements of a
// parameter, those of its blocks. Throws Error(usage) for a state of none of the parameters
// and one that has another shape than its parameter.
optim::NamedTensors slice_states(const std::vector<Shard>& shards,
                                 const std::vector<optim::Parameter>& pieces,
                                 const optim::NamedTensors& states, int64_t block = 1);

}  // namespace troika::parallel
