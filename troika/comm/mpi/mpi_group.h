// Messages between the ranks of an MPI communicator.
#pragma once

#include <atomic>
#include <memory>

#include "troika/comm/messages/group_impl.h"
#include "troika/comm/mpi/mpi.h"

namespace troika::comm::mpi {

// Set when this rank fails: MPI_Finalize would then wait for ranks that do not come. A process that
// ends without MPI_Finalize makes mpirun end the job, which is intended.
extern std::atomic<bool> gave_up;

// Throws Error(peer) if `code` is an MPI error.
void check(int code, int peer);

// Polls until a request that was started outside of a group is done. Throws Error(timeout) after
// the deadline, and the cause of a lifeline that is cut.
void finish(MPI_Request request, Deadline deadline, const Lifeline* lifeline);

// Makes the group of the ranks of `comm`, on a duplicate of it. `is_crowded` is Meeting's.
// Collective; blocks until all ranks have called.
std::shared_ptr<GroupImpl> make_group(GroupInfo info, std::shared_ptr<Lifeline> lifeline,
                                      MPI_Comm comm, bool is_crowded, Deadline deadline);

}  // namespace troika::comm::mpi
