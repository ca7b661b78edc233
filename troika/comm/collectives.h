// Collectives written once over messages: they run on any back end, block until done, and give
// every rank the same bits, because each block is summed at one place in one order.
#pragma once

#include <c10/core/ScalarType.h>

#include "troika/comm/group_impl.h"
#include "troika/comm/reduce.h"

namespace troika::comm {

// Where and until when a collective talks. Every rank of the group must make the same calls in the
// same order on the same tag.
struct Channel {
  GroupImpl& impl;
  uint32_t tag;
  Deadline deadline;
};

// Ring reduce-scatter followed by ring all-gather: 2(n-1) messages a rank per segment and
// 2(n-1)/n of the bytes, the least possible (Patarasuk and Yuan, JPDC 69(2), 2009). `data` holds
// `count` elements of an accumulation type and is reduced in place. Block b is summed in rotation
// order starting at rank b.
void ring_all_reduce(const Channel& channel, void* data, size_t count, c10::ScalarType type,
                     ReduceOp op);

// Binomial tree from `root`: ceil(log2 n) rounds.
void tree_broadcast(const Channel& channel, void* data, size_t bytes, int root);

// `data` holds one block of `block_bytes` a rank; this rank's own is filled, the others arrive.
void ring_all_gather(const Channel& channel, void* data, size_t block_bytes);

// Returns when every rank has come (dissemination barrier, Hensgen et al. 1988).
void dissemination_barrier(const Channel& channel);

}  // namespace troika::comm
