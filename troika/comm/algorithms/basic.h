// The collectives besides all-reduce, over messages. They block until done and accept any number
// of members and sizes.
#pragma once

#include <vector>

#include "troika/comm/algorithms/party.h"

namespace troika::comm {

// Binomial tree from member `root`: ceil(log2 n) rounds.
void tree_broadcast(const Party& party, Span whole, int root);

// Binomial tree to `root`, whose `whole` becomes the result; the others' are used up.
void tree_reduce(const Party& party, Span whole, int root, const Elements& elements);

// One block a member, of any sizes. After it this member's own block is the result, and the others
// are used up. ring_reduce_scatter(), or, for Elements::wants_all_terms(), every block goes
// straight to its owner, which reduces all of them at once: one rounding, bytes and messages of the
// ring.
void flat_reduce_scatter(const Party& party, const std::vector<Span>& blocks,
                         const Elements& elements);

// Straight to and from the root; `blocks` counts on the root only.
void linear_gather(const Party& party, Span own, const std::vector<Span>& blocks, int root);
void linear_scatter(const Party& party, Span own, const std::vector<Span>& blocks, int root);

// Pairwise exchange in n-1 steps. out[m] of this member is in[me] of member m.
void pairwise_all_to_all(const Party& party, const std::vector<Span>& in,
                         const std::vector<Span>& out);

// ceil(log2 n) rounds (Hensgen, Finkel and Manber, 1988).
void dissemination_barrier(const Party& party);

}  // namespace troika::comm
