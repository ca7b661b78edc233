// Starts the processes that measure.
#pragma once

#include <string>
#include <vector>

namespace troika::cli::bench {

// Runs the command once per rank on this machine until all have ended, and returns the exit code: 0
// when all succeeded. They are processes of an MPI job if `by_mpi`, else what `troika launch`
// starts. Their outputs are this process's. Throws Error(usage) where there is no mpirun.
int start_ranks(const std::vector<std::string>& command, int ranks, bool by_mpi);

}  // namespace troika::cli::bench
