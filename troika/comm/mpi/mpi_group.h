// Messages between the ranks of an MPI communicator.
#pragma once

#include <atomic>
#include <memory>

#include "troika/comm/group_impl.h"
#include "troika/comm/mpi/mpi.h"

namespace troika::comm::mpi {

// Set when a rank gives up: MPI_Finalize would then wait for ranks that no longer come. A process
// that ends without it makes mpirun end the job, which is what is wanted.
extern std::atomic<bool> gave_up;

// Throws Error(peer) for what MPI reports as a failure.
void check(int code, int peer);

// Polls until a request that was started outside of a group is done. Throws Error(timeout) past the
// deadline, and the cause of a lifeline that is cut.
void finish(MPI_Request request, Deadline deadline, const Lifeline* lifeline);

// The ranks of `comm`, on a duplicate of it. Called by all of them; blocks until they are there.
std::shared_ptr<GroupImpl> make_group(Station station, std::shared_ptr<Lifeline> lifeline,
                                      MPI_Comm comm, Deadline deadline);

}  // namespace troika::comm::mpi
