// Groups of MPI communicators that a program already has, e.g. a simulation that trains as it runs.
// Only in builds that have the mpi back end; includes mpi.h.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "troika/comm/group.h"

namespace troika::comm::mpi {

// The group of the ranks of `comm`, called by all of them. The program keeps owning MPI and the
// communicator: the group works on a duplicate, and must be gone before MPI_Finalize. With less
// than MPI_THREAD_MULTIPLE, asynchronous calls are carried out at once, on the calling thread,
// which must be one that may call MPI. Blocks. Throws Error(usage) before MPI_Init.
Group group_of(MPI_Comm comm, const GroupOptions& options = {});

}  // namespace troika::comm::mpi
