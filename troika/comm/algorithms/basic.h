// The collectives other than all-reduce, over messages. They block until done and accept any number
// of members and any sizes.
#pragma once

#include <vector>

#include "troika/comm/algorithms/rank_subset.h"

namespace troika::comm {

// Binomial tree from member `root`: ceil(log2 n) rounds.
void tree_broadcast(const RankSubset& subset, ByteSpan whole, int root);

// Binomial tree to `root`, whose `whole` becomes the result; `whole` of the others is overwritten.
void tree_reduce(const RankSubset& subset, ByteSpan whole, int root, const Elements& elements);

// `blocks` has one block per member, of any size. This member's own block becomes the result; the
// other blocks are overwritten. Calls ring_reduce_scatter(), except if Elements::wants_all_terms():
// then every block is sent straight to its owner, which reduces all terms at once with one
// rounding. Bytes and messages are those of the ring.
void flat_reduce_scatter(const RankSubset& subset, const std::vector<ByteSpan>& blocks,
                         const Elements& elements);

// Sends straight to and from the root; `blocks` is used on the root only.
void linear_gather(const RankSubset& subset, ByteSpan own, const std::vector<ByteSpan>& blocks,
                   int root);
void linear_scatter(const RankSubset& subset, ByteSpan own, const std::vector<ByteSpan>& blocks,
                    int root);

// Pairwise exchange in n-1 steps. out[m] of this member is in[me] of member m.
void pairwise_all_to_all(const RankSubset& subset, const std::vector<ByteSpan>& in,
                         const std::vector<ByteSpan>& out);

// ceil(log2 n) rounds (Hensgen, Finkel and Manber, 1988).
void dissemination_barrier(const RankSubset& subset);

}  // namespace troika::comm
