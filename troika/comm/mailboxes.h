// The memory of back ends for messages that have not been received.
#pragma once

#include <cstdint>
#include <string_view>

namespace troika::comm {

// Returns the largest number of bytes that one rank of a world of `ranks` ranks, spread evenly over
// `nodes` nodes, holds for messages and collectives in memory of the back end itself. `backend` is
// the name in comm.backend.
//   shm: the staging area, the slots of calls, the cells of all messages that the rank sends, and
//        the blocks that are kept for reuse.
//   tcp: the credit of each other rank, which limits what that rank may send ahead (net/frame.h).
//   gloo, mpi: 0, because their libraries do not tell.
//   auto: on one node shm; on several, shm for the ranks of its node and tcp for the others. Where
//         an MPI launcher starts the ranks, mpi takes the place of tcp, so this is an upper bound.
// A message that a sender must not change until it is received stays in the sender's tensor and is
// not included; neither are the buffers of edges (edge_memory.h). A world of one rank needs 0.
// Throws Error(usage) for an unknown back end.
int64_t most_mailbox_bytes(std::string_view backend, int ranks, int nodes = 1);

// Whether each message is copied when it is sent, so that its tensor is not needed afterwards: with
// shm, and on one node with auto. Throws Error(usage) for an unknown back end.
bool copies_messages(std::string_view backend, int nodes = 1);

}  // namespace troika::comm
