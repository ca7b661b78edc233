// The group of all ranks, from whatever started this process.
#pragma once

#include <string>

#include "troika/cluster/environment.h"
#include "troika/comm/group.h"

namespace troika::comm {

struct WorldOptions {
  // "shm", "tcp", "gloo", "mpi", or "auto": shared memory between ranks of one node; between nodes
  // mpi when an MPI launcher started this process and MPI is built in, else tcp; and nccl for
  // tensors on CUDA devices where it is built in.
  std::string backend = "auto";
  // How long to wait for all ranks to arrive.
  Milliseconds join_timeout = std::chrono::seconds(60);
  // Where flight_record is empty, a failing group writes into TROIKA_FLIGHT_RECORD, which
  // `troika launch` hands down; where that is not set, into a fresh folder of mode 0700 in the
  // system's folder for temporary files, which has the same name on all ranks and is in the log.
  GroupOptions group = {};
};

// Finds out which rank of how many this process is (srun, mpirun, torchrun or `troika launch`,
// or alone; see cluster::discover) and connects to the others. Blocks until all have arrived.
// Throws Error(usage) for an environment that does not add up, Error(timeout) naming the ranks that
// did not come.
Group world(const WorldOptions& options = {});
Group world(const cluster::Environment& environment, const WorldOptions& options);

// The back end that "auto" stands for here if the ranks of a node can share memory, as it can be
// told before they have met: "local" when the process is alone, "shm", "shm+tcp" or "shm+mpi".
std::string choose_backend(const cluster::Environment& environment);

}  // namespace troika::comm
