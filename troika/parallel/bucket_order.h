// Conversion between names of parameters and indices of slots.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "troika/parallel/buckets.h"

namespace troika::parallel {

// Returns the indices of the slots in the order of `names`. Without names the order is from last to
// first, since gradients arrive roughly in the reverse order of registration. Throws Error(usage)
// unless each slot is named exactly once.
std::vector<size_t> first_order(const std::vector<GradientSlot>& slots,
                                const std::vector<std::string>& names);

// Returns the indices of the slots in each bucket. Every name must belong to a slot.
std::vector<std::vector<size_t>> members_of(const std::vector<GradientSlot>& slots,
                                            const std::vector<std::vector<std::string>>& buckets);

}  // namespace troika::parallel
