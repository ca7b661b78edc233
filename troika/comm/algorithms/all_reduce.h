// All-reduce algorithms over messages. Each algorithm works on `whole` in place, blocks until done,
// accepts any number of members and elements, and gives every member the same bits, because each
// element is reduced in one place or in the same order everywhere. With n members and S bytes,
// costs are what one member sends. Half-precision types are sent as they are; each reduction
// computes in float32 and rounds once.
#pragma once

#include "troika/comm/algorithms/rank_subset.h"

namespace troika::comm {

// Reduce-scatter and all-gather in a ring: 2(n-1) messages per segment and 2(n-1)/n S bytes, the
// minimum (Patarasuk and Yuan, JPDC 69(2), 2009). Block b is reduced in the order b+1, b+2, ..., b.
// If Elements::wants_all_terms(), the owner reduces all terms of its block at once instead (see
// flat_reduce_scatter()).
void ring_all_reduce(const RankSubset& subset, ByteSpan whole, const Elements& elements);

// log2 n exchanges of S bytes for n a power of two; otherwise some members do two more.
// Half-precision types are rounded once per exchange.
void recursive_doubling_all_reduce(const RankSubset& subset, ByteSpan whole,
                                   const Elements& elements);

// Recursive halving, then doubling: 2 log2 n messages and 2(n-1)/n S bytes for n a power of two.
// Otherwise members beyond the largest power of two first give half of their work to a neighbour
// (Rabenseifner; Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, section 4.5).
void rabenseifner_all_reduce(const RankSubset& subset, ByteSpan whole, const Elements& elements);

// Two trees over all members; each carries half of the data up and down, and a member is an
// interior node of at most one tree (Sanders, Speck and Traeff, Parallel Computing 35(12), 2009).
// Pipelined by segments; at most 2S bytes in each direction.
void double_tree_all_reduce(const RankSubset& subset, ByteSpan whole, const Elements& elements);

}  // namespace troika::comm
