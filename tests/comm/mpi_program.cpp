// A program that already uses MPI: it initialises MPI itself, makes a communicator, trains with a
// group made from it, and continues to use MPI after the group is gone. Argument: the thread
// support to ask MPI for.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "troika/base/error.h"
#include "troika/comm/mpi/mpi.h"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::abort();
}

void use(MPI_Comm comm, bool threads) {
  using namespace troika::comm;
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  const Group group = mpi::group_of(comm);
  require(group.rank() == rank && group.size() == size, "the group's ranks are the communicator's");
  auto tensor = at::full({100'000}, rank + 1.0);
  const auto work = group.all_reduce(tensor, ReduceOp::sum, {.async_op = true});
  require(threads || work.done(), "without threads, calls are done when they return");
  work.wait();
  require(tensor.eq(size * (size + 1) / 2.0).all().item<bool>(), "the sum is right");
  bool is_refused = false;
  std::thread([&] {
    try {
      group.barrier();
    } catch (const troika::Error& error) {
      is_refused = error.kind() == troika::ErrorKind::usage;
    }
  }).join();
  require(is_refused == !threads, "without threads, another thread is refused");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    troika::comm::mpi::group_of(MPI_COMM_WORLD);
    require(false, "a group before MPI_Init is refused");
  } catch (const troika::Error& error) {
    require(error.kind() == troika::ErrorKind::usage, "it is an error of usage");
  }
  const bool threads = argc > 1 && std::string(argv[1]) == "multiple";
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  // Ranks in reverse, without rank 0 of the world.
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 0, -rank, &part);
  if (part != MPI_COMM_NULL) {
    use(part, threads);
    MPI_Comm_free(&part);
  }
  int one = 1;
  int sum = 0;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  require(sum == size, "MPI still works");
  int finalized = 0;
  MPI_Finalized(&finalized);
  require(!finalized, "the program still owns MPI");
  return MPI_Finalize();
}
