// The group of all ranks of a job, however this process was started.
#pragma once

#include <string>

#include "troika/cluster/discovery/environment.h"
#include "troika/comm/group.h"

namespace troika::comm {

struct WorldOptions {
  // "shm", "tcp", "gloo", "mpi" or "auto". With "auto", ranks of one node use shared memory, and
  // ranks of different nodes use mpi if an MPI launcher started this process and MPI is built in,
  // otherwise tcp. With every back end, collectives on CUDA tensors use nccl if it is built in and
  // messages are not protected.
  std::string backend = "auto";
  // The longest time to wait for all ranks to arrive.
  Milliseconds join_timeout = std::chrono::seconds(60);
  // If flight_record is empty, a failing group writes into TROIKA_FLIGHT_RECORD, which `troika
  // launch` sets. If that is not set either, it writes into a new folder of mode 0700 in the
  // system's temporary folder; the name is the same on all ranks and is logged.
  GroupOptions group = {};
};

// Finds this process's rank and the world size (from srun, mpirun, torchrun or `troika launch`, or
// a single process; see cluster::discover) and connects to the other ranks. Blocks until all have
// arrived. Throws Error(usage) for a contradictory environment, Error(timeout) that names the ranks
// that did not arrive.
Group world(const WorldOptions& options = {});
Group world(const cluster::Environment& environment, const WorldOptions& options);

// Returns the back end that "auto" selects here, assuming that the ranks of a node can share
// memory: "local" for a single process, otherwise "shm", "shm+tcp" or "shm+mpi". Works before
// rendezvous.
std::string choose_backend(const cluster::Environment& environment);

}  // namespace troika::comm
