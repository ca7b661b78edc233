// Collectives over a ring, in which every member sends to the next member (Patarasuk and Yuan, JPDC
// 69(2), 2009). A segment is forwarded as soon as it has arrived, so that a link is busy from the
// first step to the last.
#pragma once

#include <vector>

#include "troika/comm/algorithms/rank_subset.h"

namespace troika::comm {

// Blocks of any sizes, one per member. After n-1 steps this member's own block is the result, and
// the other blocks are overwritten. Makes partial sums: not for Elements::wants_all_terms().
void ring_reduce_scatter(const RankSubset& subset, const std::vector<ByteSpan>& blocks,
                         const Elements& elements);

// Blocks of any sizes, one per member; the caller has filled this member's own block. n-1 steps.
void ring_all_gather(const RankSubset& subset, const std::vector<ByteSpan>& blocks);

// ring_reduce_scatter() and ring_all_gather() combined: results are forwarded while other blocks
// are still being reduced. `blocks` is as in these functions.
void ring_reduce_and_gather(const RankSubset& subset, const std::vector<ByteSpan>& blocks,
                            const Elements& elements);

}  // namespace troika::comm
