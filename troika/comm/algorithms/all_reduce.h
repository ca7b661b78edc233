// All-reduce over messages, by every algorithm that is worth having. Each works on `whole` in
// place, blocks until done, accepts any number of members and of elements, and gives every member
// the same bits, because each element is reduced at one place or in one order everywhere. With n
// members and S bytes, costs are what one member sends. Half-precision types travel as they are;
// each reduction computes in float32 and rounds once.
#pragma once

#include "troika/comm/algorithms/party.h"

namespace troika::comm {

// Reduce-scatter and all-gather in a ring: 2(n-1) messages a segment and 2(n-1)/n S bytes, the
// least possible (Patarasuk and Yuan, JPDC 69(2), 2009). Block b is reduced in the order b+1, b+2,
// ..., b; where Elements::wants_all_terms(), all at once by the rank that gets it (see
// flat_reduce_scatter()).
void ring_all_reduce(const Party& party, Span whole, const Elements& elements);

// log2 n exchanges of S bytes (n a power of two; else two more for some), as many roundings of
// half-precision types.
void recursive_doubling_all_reduce(const Party& party, Span whole, const Elements& elements);

// Recursive halving, then doubling: 2 log2 n messages and 2(n-1)/n S bytes for n a power of two;
// else members beyond the largest power of two first give half of their work to a neighbour
// (Rabenseifner; Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, section 4.5).
void rabenseifner_all_reduce(const Party& party, Span whole, const Elements& elements);

// Two trees, each over all members and carrying half of the data up and down; a member is interior
// in at most one of them (Sanders, Speck and Traeff, Parallel Computing 35(12), 2009). Pipelined
// by segments; at most 2S bytes each way.
void double_tree_all_reduce(const Party& party, Span whole, const Elements& elements);

}  // namespace troika::comm
