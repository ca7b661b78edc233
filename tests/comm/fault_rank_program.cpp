// comm_fault_rank BACKEND FAULT WHEN FOLDER VICTIM: run_fault_rank() as a program, for launchers.
#include <cstdlib>

#include "tests/comm/fault_rank.h"

int main(int, char** argv) {
  // MPI_Finalize would wait for the ranks that ended without it. mpirun ends such a job, unless it
  // is told, as in the tests, to let the other ranks go on.
  std::_Exit(
      troika::comm::run_fault_rank({argv[1], argv[2], argv[3], argv[4], std::atoi(argv[5])}));
}
