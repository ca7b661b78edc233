// Which slots lie in which bucket, as names say.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "troika/parallel/buckets.h"

namespace troika::parallel {

// The slots' indices in the order of these names or, without names, from the last to the first,
// since gradients arrive roughly in the reverse order of registration. Throws Error(usage) unless
// each slot is named once.
std::vector<size_t> first_order(const std::vector<Slot>& slots,
                                const std::vector<std::string>& names);

// The slots' indices in each bucket of names, all of which are slots'.
std::vector<std::vector<size_t>> members_of(const std::vector<Slot>& slots,
                                            const std::vector<std::vector<std::string>>& buckets);

}  // namespace troika::parallel
