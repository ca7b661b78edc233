// Wrappers of Slurm's commands, which must be in PATH.
#pragma once

#include <filesystem>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/slurm/job.h"

namespace troika::cluster::slurm {

// Generous, because a busy controller answers slowly.
inline constexpr Milliseconds kAnswerTime{120'000};

// Checks the job's program. Throws Error(slurm, usage) if it is not in PATH, unless the job loads
// modules that may provide it. If it is `troika`, runs it with --check and throws Error(slurm,
// usage) if it rejects its arguments or configuration. Returns the output of --check: the
// configuration as TOML; empty for other programs and for commands without one.
std::string check_program(const Job& job, Deadline deadline = Deadline::after(kAnswerTime));

// Submits the script and returns the job id. Throws Error(cluster, usage) if there is no sbatch,
// Error(slurm, failure) with sbatch's message if it refuses, and Error(slurm, timeout) on the
// deadline.
std::string submit(const std::filesystem::path& script,
                   Deadline deadline = Deadline::after(kAnswerTime));

// Whether this process runs in a job that should be requeued at its time limit: under Slurm, not in
// an interactive shell (a job named bash or interactive), and TROIKA_REQUEUE is not 0. `troika
// slurm make --no-requeue` sets it to 0.
bool may_requeue(const Variables& variables = process_variable);

// Requeues this process's job, or its array task, and returns its id. Call it on one rank, after
// all have saved: Slurm starts to stop the job at once. Throws like submit(), and Error(slurm,
// usage) outside of a job.
std::string requeue(const Variables& variables = process_variable,
                    Deadline deadline = Deadline::after(kAnswerTime));

}  // namespace troika::cluster::slurm
