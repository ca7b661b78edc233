// The memory of the two ends of an edge (edge.h), computed before the edge exists, for predictions.
#pragma once

#include <cstdint>

namespace troika::comm {

// How a program uses an edge.
struct EdgeTraffic {
  int64_t tensor_bytes = 0;  // of each tensor, or of the largest one if sizes differ
  int depth = 2;             // EdgeOptions::depth
  // How many received tensors the program refers to at the same time, including the one that
  // receive() returns. At least 1. receive_into() of tensors on a device takes up to `depth` more,
  // from which the device still copies.
  int referenced = 1;
};

// Bytes that one end of an edge holds.
struct EdgeBytes {
  int64_t tensors = 0;  // counted by base/memory.h
  int64_t frames = 0;   // other memory

  int64_t sum() const { return tensors + frames; }
};

// The receiving end: the posted receives, and the received tensors that the program refers to. This
// is what the end holds from the time when the program first refers to `referenced` tensors. An
// upper bound if sizes differ. The same on every back end.
EdgeBytes receiving_edge_bytes(const EdgeTraffic& traffic);

// The sending end: an upper bound. `tensors` are sent tensors that the receiver has not taken yet;
// the program may refer to them too. Back ends local and shm copy them: the copies take as many
// bytes in memory of the back end, which base/memory.h does not count.
EdgeBytes sending_edge_bytes(const EdgeTraffic& traffic);

}  // namespace troika::comm
