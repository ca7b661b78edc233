// The variables of a process of a parameter server (docs/parameter-server.md).
#pragma once

#include "troika/cluster/discovery/environment.h"

namespace troika::cluster {

// Returns `variables`, unless TROIKA_ROLE is `slurm`. The result then has the role, its number, the
// scheduler's address and the numbers of servers and workers of a task in a heterogeneous job of
// Slurm: the tasks of the job's first component are the scheduler and, after it, the servers; those
// of the second one are the workers. Each component is started by an srun of its own. If the first
// one has a single task, each worker's process has a server. Variables that are set count before
// those. Throws Error(cluster, usage) outside of such a job and such a step.
Variables role_variables(const Variables& variables);

}  // namespace troika::cluster
