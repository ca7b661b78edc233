// Collectives of all ranks of a group by levels: inside the nodes (see InsideNode), and between
// them over messages. They block until done and accept any ranks on any nodes. With M nodes and S
// bytes in all, each node sends the bytes given below to other nodes, if nodes have equally many
// members. Results of the half-precision types are rounded once a level.
#pragma once

#include <vector>

#include "troika/comm/algorithms/nodes.h"
#include "troika/comm/call.h"

namespace troika::comm {

// Reduce-scatter inside, an all-reduce of each block between members of different nodes, all-gather
// inside: 2(M-1)/M S bytes if `between` is the ring. `between` is ring, recursive_doubling or
// rabenseifner. As many members of a node take part between nodes as the smallest node has.
void hierarchical_all_reduce(const Party& everyone, const Nodes& nodes, Span whole,
                             const Elements& elements, Algorithm between);

// One block a member, of any sizes. Each node adds up its terms of every block and sends them to
// the block's owner: (M-1)/M S bytes. `own` becomes this member's block. `blocks` is left as it is.
void hierarchical_reduce_scatter(const Party& everyone, const Nodes& nodes,
                                 const std::vector<Span>& blocks, Span own,
                                 const Elements& elements);

// One block a member, of any sizes; this member's own is filled before. Each block is sent once to
// every other node: (M-1)/M S bytes.
void hierarchical_all_gather(const Party& everyone, const Nodes& nodes,
                             const std::vector<Span>& blocks);

// From member `root` in a binomial tree to one member of each node, then inside: (M-1) S bytes in
// all.
void hierarchical_broadcast(const Party& everyone, const Nodes& nodes, Span whole, int root);

// Inside, between one member of each node, inside. Returns false, and does nothing, where ranks of
// a node would have to send messages.
bool hierarchical_barrier(const Party& everyone, const Nodes& nodes);

}  // namespace troika::comm
