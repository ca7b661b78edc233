// The rank and world size of this process, from its launcher's environment variables.
//
// Incomplete or contradictory variables are errors that name the variables. Otherwise N processes
// could each train a separate model unnoticed.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace troika::cluster {

struct Environment {
  int rank = 0;
  int world_size = 1;
  // On this machine.
  int local_rank = 0;
  int local_world_size = 1;
  // -1 of -1 if unknown. Open MPI, PMI and LSF do not provide them: they are derived for block and
  // cyclic placement with the same number of ranks on all machines.
  int node_rank = 0;
  int num_nodes = 1;
  // Where rank 0 listens. Empty if the ranks are on several machines and neither the launcher nor
  // MASTER_ADDR provides the address; this suffices for MPI, but Rendezvous::join refuses it.
  std::string master_address = "127.0.0.1";
  int master_port = 0;            // 0: any port, only for a single process
  std::string launcher = "none";  // "torchrun", "slurm", "openmpi", "pmi", "lsf", "none"
  std::string run_id;             // the same on all ranks of a run; may be empty
};

// Returns the value of a variable, or nullopt if it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_variable(const std::string& name);

// Looks for the variables of, in this order: torchrun (also set by `troika launch`), Slurm, Open
// MPI, PMI (MPICH, Intel MPI) and LSF's jsrun. The first complete set is used; without any, the
// process is alone. All processes in a Slurm allocation inherit Slurm's variables. Therefore Open
// MPI's and PMI's take precedence if they disagree with Slurm's: mpirun was then started inside the
// allocation. Empty variables count as not set. The only files read are the kernel's port range
// and, under LSF, the job's rank file. Throws Error(cluster, usage) for incomplete or contradictory
// sets and for values out of range.
Environment discover(const Variables& variables = process_variable);

// Returns e.g. "rank 1 of 4 (local 1 of 4 on node 0 of 1), found by torchrun variables".
std::string describe(const Environment& environment);

// Throws Error(cluster, usage) unless `size`, the world size that `who` (e.g. "MPI") reports,
// equals the environment's. Detects the singletons that srun or a foreign mpirun makes of an MPI
// program.
void require_world_size(const Environment& environment, int size, const std::string& who);

}  // namespace troika::cluster
