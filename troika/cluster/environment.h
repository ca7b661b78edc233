// Which of how many processes this one is, as its launcher left it in environment variables.
//
// A launch that pairs wrongly must not train N models in silence: whatever is half there or
// disagrees with itself is an error that names the variables.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace troika::cluster {

struct Environment {
  int rank = 0;
  int world_size = 1;
  // Among the ranks of this machine.
  int local_rank = 0;
  int local_world_size = 1;
  // Among the machines. Open MPI, PMI and LSF do not tell it, there it is worked out for block-wise
  // and cyclic placement of equally filled machines; else -1 of -1.
  int node_rank = 0;
  int num_nodes = 1;
  // Where rank 0 listens for the others. Empty where ranks are on several machines and neither the
  // launcher nor MASTER_ADDR tells: enough for MPI, refused by Rendezvous::join.
  std::string master_address = "127.0.0.1";
  int master_port = 0;            // 0: any, only when alone
  std::string launcher = "none";  // "torchrun", "slurm", "openmpi", "pmi", "lsf", "none"
  std::string run_id;             // the same on all ranks of one run; may be empty
};

// The value of a variable, or nothing where it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_variable(const std::string& name);

// Looks for, in this order: torchrun's variables (also set by `troika launch`), Slurm, Open MPI,
// PMI (MPICH, Intel MPI), LSF's jsrun; the first complete set wins, and none at all means alone.
// Slurm's variables are inherited by everything inside an allocation, so Open MPI's and PMI's win
// over them where the two disagree: mpirun was then started inside. An empty variable counts as not
// set. Reads no file but the kernel's port range and, under LSF, the job's rank file.
// Throws Error(cluster, usage) for incomplete and contradictory sets and values out of range.
Environment discover(const Variables& variables = process_variable);

// "rank 1 of 4 (local 1 of 4 on node 0 of 1), found by torchrun variables".
std::string describe(const Environment& environment);

// Refuses the silent singletons that srun or a foreign mpirun makes of an MPI program: throws
// Error(cluster, usage) unless `size`, the size that `who` (e.g. "MPI") reports, is the world's.
void require_world_size(const Environment& environment, int size, const std::string& who);

}  // namespace troika::cluster
