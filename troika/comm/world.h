// The group of all ranks, from whatever started this process.
#pragma once

#include <string>

#include "troika/cluster/environment.h"
#include "troika/comm/group.h"

namespace troika::comm {

struct WorldOptions {
  // "gloo", "mpi", or "auto": mpi when an MPI launcher started this process and MPI is built in,
  // else gloo.
  std::string backend = "auto";
  // How long to wait for all ranks to arrive.
  Milliseconds join_timeout = std::chrono::seconds(60);
  GroupOptions group = {};
};

// Finds out which rank of how many this process is (srun, mpirun, torchrun or `troika launch`,
// or alone; see cluster::discover) and connects to the others. Blocks until all have arrived.
// Throws Error(usage) for an environment that does not add up, Error(timeout) naming the ranks that
// did not come.
Group world(const WorldOptions& options = {});
Group world(const cluster::Environment& environment, const WorldOptions& options);

// The back end `auto` stands for here; "local" when the process is alone.
std::string choose_backend(const cluster::Environment& environment);

}  // namespace troika::comm
