// Collectives over a ring, in which every member sends to the next one (Patarasuk and Yuan, JPDC
// 69(2), 2009). A segment is sent on as soon as it has come, so that a link carries data from the
// first step to the last.
#pragma once

#include <vector>

#include "troika/comm/algorithms/party.h"

namespace troika::comm {

// One block a member, of any sizes. After reduce-scatter, in n-1 steps, this member's own block is
// the result, and the others are used up. Partial sums are made: not for
// Elements::wants_all_terms().
void ring_reduce_scatter(const Party& party, const std::vector<Span>& blocks,
                         const Elements& elements);

// One block a member, of any sizes; this member's own block is filled. n-1 steps.
void ring_all_gather(const Party& party, const std::vector<Span>& blocks);

// ring_reduce_scatter() and ring_all_gather() in one go: results are sent on while others are still
// being reduced. Blocks as there.
void ring_reduce_and_gather(const Party& party, const std::vector<Span>& blocks,
                            const Elements& elements);

}  // namespace troika::comm
