// Groups from MPI communicators that a program already has, e.g. a simulation that trains while it
// runs. Only in builds with the mpi back end; includes mpi.h.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "troika/comm/group.h"

namespace troika::comm::mpi {

// Makes the group of the ranks of `comm`. Collective, blocking. The program keeps ownership of MPI
// and of the communicator: the group works on a duplicate, and must be destroyed before
// MPI_Finalize. Below MPI_THREAD_MULTIPLE, asynchronous calls run at once on the calling thread,
// which must be allowed to call MPI. Throws Error(usage) before MPI_Init.
Group group_of(MPI_Comm comm, const GroupOptions& options = {});

}  // namespace troika::comm::mpi
