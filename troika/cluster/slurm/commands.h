// Slurm's own commands, which have to be in PATH.
#pragma once

#include <filesystem>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/slurm/job.h"

namespace troika::cluster::slurm {

// A busy controller lets its clients wait.
inline constexpr Milliseconds kAnswerTime{120'000};

// Throws Error(slurm, usage) where the job's program is not in PATH, unless the job loads modules
// that may bring it, and where it is `troika` and refuses its words or its configuration, of which
// it is asked with --check. Returns what it says: the configuration as TOML, empty for other
// programs and for commands without one.
std::string check_program(const Job& job, Deadline deadline = Deadline::after(kAnswerTime));

// Sends the script and returns the job's id. Throws Error(cluster, usage) where there is no sbatch,
// Error(slurm, failure) with sbatch's words where it refuses, and Error(slurm, timeout) when it has
// not answered by the deadline.
std::string submit(const std::filesystem::path& script,
                   Deadline deadline = Deadline::after(kAnswerTime));

// Whether this process runs in a job that should go back into the queue when its time is over:
// under Slurm, not in a shell somebody types into (a job named bash or interactive), and
// TROIKA_REQUEUE, when set, is not 0. `troika slurm make --no-requeue` sets it to 0.
bool may_requeue(const Variables& variables = process_variable);

// Puts this process's job, or its element of an array, back into the queue and returns its id. For
// one rank of the job, after all have saved: Slurm begins to stop the job at once. Throws as
// submit() does, Error(slurm, usage) also outside of a job.
std::string requeue(const Variables& variables = process_variable,
                    Deadline deadline = Deadline::after(kAnswerTime));

}  // namespace troika::cluster::slurm
