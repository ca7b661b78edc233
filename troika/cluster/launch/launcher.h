// Starts and supervises the ranks of this machine: `troika launch -n N PROGRAM ARGS...`.
//
// The report names the rank that failed first, its message, how it ended and its log, and marks the
// ranks that the launcher stopped. No process that a rank started survives the launch; if the
// launcher itself is killed by SIGKILL, only daemons survive.
#pragma once

#include "troika/cluster/ranks/launch_options.h"

namespace troika::cluster {

// Runs the command once per rank until all have ended. Returns the launcher's exit code: 0 if all
// succeeded; otherwise that of the first failure (128 + signal for a killed rank); 127 if the
// program cannot be executed; 128 + signal if SIGINT, SIGTERM or SIGHUP stopped the launch. Ranks
// that saved on request (ExitCode::requeued, ::stopped) have not failed: if all ranks saved or
// succeeded, returns their code, regardless of what stopped the launch. SIGUSR1 and SIGUSR2 are
// forwarded to the programs only; other signals are forwarded to the ranks' process groups.
//
// With max_restarts, a failure ends only its round. When all of its processes are gone, all ranks
// are restarted, with TORCHELASTIC_RESTART_COUNT incremented, and append to their logs. Failures
// that a retry cannot fix (ExitCode::usage, ::not_executable) end the launch, as do SIGINT, SIGTERM
// and SIGHUP.
//
// Elastic launches end a round together and start the next one with the launches that are present:
// after a failure, when a machine is lost or told to end, and when a new machine joins. Only
// failures count as restarts. All launches return the exit code of the run, that of the first
// failure. The end of the hosting launch ends the run.
//
// With LaunchOptions::roles, the processes are those of a parameter server (roles.h has their
// variables). The end of one of them is announced, and is not the end of the others. The launch
// ends when all workers have ended, or with the scheduler. Its exit code is 0 if scheduler and
// workers succeeded, whatever servers did; otherwise that of the first of them that failed. The
// outputs of worker 0 are forwarded unchanged; logs are scheduler.log, server-N.log and
// worker-N.log.
//
// With LaunchOptions::fault_tolerant, the ranks are replicas of strategy ft_ddp or diloco, and the
// launch is their lighthouse, at TROIKA_LIGHTHOUSE. The end of one of them is announced, and is not
// the end of the others; with max_restarts, another process takes its place. The exit code is 0 if
// a replica succeeded; otherwise that of the first failure of the processes that were not replaced.
//
// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT (new in each round if the launcher chooses it),
// TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, TROIKA_ROUND (counts all rounds, in an
// elastic run also those that ended because machines joined or left), TROIKA_NNODES=MIN:MAX in an
// elastic run, TROIKA_RUN_SECRET (new in each round; see docs/security.md), TROIKA_SOCKET_IFNAME if
// `interface` is set, and TROIKA_ERROR_FILE (see failure.h). Unless already set, each rank also
// gets TORCHELASTIC_RUN_ID, OMP_NUM_THREADS = cores / processes and TROIKA_FLIGHT_RECORD (a folder
// beside the logs). If standard error is a terminal, it gets TROIKA_TTY=1 and the terminal's
// COLUMNS. Standard input is empty. The outputs of local rank 0 are forwarded unchanged.
//
// Takes over signal handling and child processes while it runs: only one launch per process at a
// time. Throws Error(cluster, usage) for invalid options, including options that contradict srun's
// variables.
int launch(const LaunchOptions& options);

}  // namespace troika::cluster
