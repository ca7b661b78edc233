// comm_fault_rank BACKEND FAULT WHEN FOLDER VICTIM: run_fault_rank() as a program, for launchers.
#include <cstdlib>

#include "tests/comm/fault_rank.h"

int main(int, char** argv) {
  // MPI_Finalize would wait for the ranks that ended without calling it. mpirun usually ends such a
  // job, but the tests tell it to let the other ranks continue.
  std::_Exit(
      troika::comm::run_fault_rank({argv[1], argv[2], argv[3], argv[4], std::atoi(argv[5])}));
}
