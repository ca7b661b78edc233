// Collectives in two levels: inside the nodes (see InsideNode), and between nodes over messages.
// They block until done and accept any placement of ranks on nodes. With M nodes and S bytes in
// total, the byte counts below are what each node sends to other nodes, if all nodes have the same
// number of members. Half-precision results are rounded once per level.
#pragma once

#include <vector>

#include "troika/comm/algorithms/nodes.h"
#include "troika/comm/call/call.h"

namespace troika::comm {

// Reduce-scatter inside nodes, all-reduce of each block between members of different nodes,
// all-gather inside nodes. `between` is ring, recursive_doubling or rabenseifner; with ring, each
// node sends 2(M-1)/M S bytes. If the smallest node has k members, k members of each node
// communicate with other nodes.
void hierarchical_all_reduce(const RankSubset& everyone, const Nodes& nodes, ByteSpan whole,
                             const Elements& elements, Algorithm between);

// Blocks of any sizes, one per member. Each node sums its terms of every block and sends the sum to
// the block's owner: (M-1)/M S bytes. `own` becomes this member's block. `blocks` is not changed.
void hierarchical_reduce_scatter(const RankSubset& everyone, const Nodes& nodes,
                                 const std::vector<ByteSpan>& blocks, ByteSpan own,
                                 const Elements& elements);

// Blocks of any sizes, one per member; the caller has filled this member's own block. Each block is
// sent once to every other node: (M-1)/M S bytes.
void hierarchical_all_gather(const RankSubset& everyone, const Nodes& nodes,
                             const std::vector<ByteSpan>& blocks);

// Binomial tree from member `root` to one member of each node, then broadcast inside nodes: (M-1) S
// bytes over all nodes.
void hierarchical_broadcast(const RankSubset& everyone, const Nodes& nodes, ByteSpan whole,
                            int root);

// Barrier inside nodes, then between one member of each node, then inside nodes again. Returns
// false and does nothing if a barrier inside a node would need messages.
bool hierarchical_barrier(const RankSubset& everyone, const Nodes& nodes);

}  // namespace troika::comm
