// pipeline_fault_rank BACKEND FAULT WHEN FOLDER VICTIM: run_pipeline_fault_rank() as a program, for
// launchers.
#include <cstdlib>

#include "tests/parallel/pipeline_fault_rank.h"

int main(int, char** argv) {
  // MPI_Finalize would wait for ranks that ended without calling it.
  std::_Exit(troika::parallel::run_pipeline_fault_rank(
      {argv[1], argv[2], argv[3], argv[4], std::atoi(argv[5])}));
}
