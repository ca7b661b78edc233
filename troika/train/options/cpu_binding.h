// Binds the compute threads of a rank to processors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/base/processors.h"
#include "troika/comm/group.h"

namespace troika::train {

// The values of trainer.cpu_bind: "auto", "none", "cores". The last two are Slurm's names. With
// "none", the system moves threads; with "cores", the compute threads of each rank stay on cores of
// their own.
const std::vector<std::string>& cpu_bind_names();

// The facts about a rank that all ranks of its node need in order to divide the processors.
struct RankProcessors {
  int node = 0;
  int threads = 1;     // compute threads
  Processors allowed;  // the affinity mask set by the launcher, Slurm, mpirun or taskset
};

struct CoreShare {
  Processors processors;  // for this rank alone; empty if there is nothing to divide
  std::string problem;    // why processors cannot be divided; empty if they can
  bool divides = false;   // whether any rank gets a share
  size_t processes = 1;   // the number of ranks that share these processors, with this rank
};

// Computes the share of ranks[rank]. Ranks of a node with the same allowed processors divide them
// as evenly as possible, in rank order: in whole cores with all their hardware threads, or in
// hardware threads if there are fewer cores than ranks. Ranks with neighbouring numbers get
// processors that are near in the cache hierarchy. Nothing is divided if each rank already has
// processors of its own. Reports a problem if two ranks' masks overlap but differ, and if a share
// has fewer processors than the rank has threads, because its threads would then wait for each
// other. `root`: see cores_of().
CoreShare share_of(const std::vector<RankProcessors>& ranks, size_t rank,
                   const std::filesystem::path& root = "/");

// Computes share_of() for the ranks of `group`. A problem on any rank is reported on all, so all
// ranks decide alike. OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY and KMP_AFFINITY in the
// environment are a problem, because OpenMP then places the threads. Called by all ranks; blocks.
CoreShare share_of(const comm::Group& group);

// Restricts the compute threads of this rank to the given processors during its lifetime: the
// calling thread and the threads that run LibTorch's operators with it. They are bound to the whole
// share, not each to one processor: OpenMP ends threads that a smaller operator does not need, and
// threads started later inherit the calling thread's mask, which must have room for all of them.
//
// Other threads keep their masks. Threads that the calling thread starts meanwhile (loader workers,
// progress of collectives, checkpoint writers, threads of other libraries) may run on all its
// previous processors, by new_threads_run_on(): they work beside the computation, and would wait
// for it on its own cores. Child processes inherit the share.
//
// Must be destroyed by the thread that created it; restores that thread's previous mask.
class CpuBinding {
 public:
  // Binds nothing for an empty list. Throws Error(usage) for processors outside this thread's mask:
  // a mask is never widened.
  explicit CpuBinding(const Processors& processors);
  ~CpuBinding();
  CpuBinding(const CpuBinding&) = delete;
  CpuBinding& operator=(const CpuBinding&) = delete;

 private:
  Processors before_;  // empty if nothing is bound
};

}  // namespace troika::train
