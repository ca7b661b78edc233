// Binds the threads of a rank that compute to processors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/base/processors.h"
#include "troika/comm/group.h"

namespace troika::train {

// "auto", "none", "cores": what trainer.cpu_bind may be. The last two are Slurm's names for "the
// system moves threads" and "the threads of each rank that compute stay on cores of its own".
const std::vector<std::string>& cpu_bind_names();

// A rank, as the others of its node need to know it to divide the processors.
struct RankProcessors {
  int node = 0;
  int threads = 1;     // that compute
  Processors allowed;  // its mask, as the launcher, Slurm, mpirun or taskset set it
};

struct CoreShare {
  Processors processors;  // for this rank alone; empty where there is nothing to divide
  std::string problem;    // why processors cannot be divided; empty where they can
  bool divides = false;   // whether some rank has a share
  size_t processes = 1;   // with which this rank divides what it may run on, itself included
};

// The share of ranks[rank]: ranks of a node that may run on the same processors divide these up, as
// evenly as it goes, in the order of ranks; in whole cores with all their hardware threads, and in
// hardware threads where there are fewer cores than ranks. Neighbours in rank are neighbours in the
// machine's caches. Nothing is divided where each rank has processors of its own already. It is a
// problem where ranks' processors overlap without being the same, and where a share has fewer
// processors than its rank has threads: these would wait for each other. `root`: see cores_of().
CoreShare share_of(const std::vector<RankProcessors>& ranks, size_t rank,
                   const std::filesystem::path& root = "/");

// share_of() the ranks of `group`, with a problem of any rank on all, so that all decide alike. The
// environment's OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY and KMP_AFFINITY are such a problem:
// OpenMP places the threads then. Called by all ranks; blocks.
CoreShare share_of(const comm::Group& group);

// While it lives, the threads that compute for this one may run on these processors alone: this
// thread, and those with which it shares LibTorch's operators. They are bound to the whole of the
// share, not each to a processor of it: OpenMP ends threads that a smaller operator does not need,
// and those that it starts again inherit this thread's processors, which must have room for all.
//
// Other threads keep the processors that they had. Those that this thread starts meanwhile (workers
// of loaders, progress of collectives, writers of checkpoints, and those of other libraries) may
// run wherever it could before, by new_threads_run_on(): they work beside computation, and would
// wait for it on its own cores. Processes that it starts inherit the share.
//
// To be destroyed by the thread that made it, which then has its processors from before again.
class CpuBinding {
 public:
  // Binds nothing for an empty list. Throws Error(usage) for processors that this thread may not
  // run on: a mask is never widened.
  explicit CpuBinding(const Processors& processors);
  ~CpuBinding();
  CpuBinding(const CpuBinding&) = delete;
  CpuBinding& operator=(const CpuBinding&) = delete;

 private:
  Processors before_;  // empty where nothing is bound
};

}  // namespace troika::train
