// Starts the benchmark's processes.
#pragma once

#include <string>
#include <vector>

namespace troika::cli::bench {

// Runs the command once for each rank on this machine, blocks until all processes have ended, and
// returns the exit code: 0 if all succeeded. With `by_mpi`, mpirun starts the processes, otherwise
// Troika's launcher. They inherit this process's output streams. Throws Error(usage) if there is no
// mpirun.
int start_ranks(const std::vector<std::string>& command, int ranks, bool by_mpi);

}  // namespace troika::cli::bench
