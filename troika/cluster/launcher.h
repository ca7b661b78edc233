// Starts and supervises the ranks of this machine: `troika launch -n N PROGRAM ARGS...`.
//
// The report names the rank that failed first, its message, how it ended and its log, and marks the
// ranks that the launcher stopped. No process that a rank started survives the launch; if the
// launcher itself is killed by SIGKILL, only daemons survive.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"

namespace troika::cluster {

// Options of an elastic run: launches, one per machine, that agree on rounds. A round has
// `min_nodes` to LaunchOptions::num_nodes of them. They meet at `endpoint`: the first launch on
// that machine hosts the server and rank 0. The run ends if the hosting launch is lost.
struct ElasticOptions {
  int min_nodes = 1;
  std::string endpoint;  // host, host:port or [IPv6 address]:port; default port kDefaultPort
  std::string id;        // of the run; launches with another id are refused. "": generated
  // `last_call_timeout`: how long a round with min_nodes waits for more machines. `join_timeout`:
  // how long it waits for min_nodes.
  Milliseconds last_call_timeout{30'000};
  Milliseconds join_timeout{600'000};
};

struct LaunchOptions {
  int processes = 1;  // number of ranks on this machine
  // With several machines, launch() runs once on each. All options must be equal except node_rank.
  // Elastic launches do not set node_rank: it may change each round.
  int num_nodes = 1;
  std::optional<ElasticOptions> elastic;
  int node_rank = 0;
  std::string master_address;  // of node 0; "" means 127.0.0.1, only allowed with one node
  int master_port = 0;         // 0: a free port; kDefaultPort on several nodes unless elastic
  // Name or address of the network interface on which this launch and rank 0 listen; "": see
  // kInterfaceVariable.
  std::string interface;
  // The folder for the logs. rank-N.log has both outputs of rank N; of lines with carriage returns
  // (progress bars) only the last state is kept. Empty: a new temporary folder, which is removed
  // unless a rank failed or left a flight record, or a signal ended the launch.
  std::filesystem::path log_dir;
  bool tee = false;  // also show the lines of the other ranks, prefixed with "[rank N] "
  Milliseconds shutdown_timeout{5000};  // from SIGTERM (or a forwarded signal) to SIGKILL
  Milliseconds settle_time{1000};  // after the first failure, for other ranks to fail by themselves
  // How many failed rounds are followed by a new round. Only on a single machine or in elastic
  // runs.
  int max_restarts = 0;
  std::vector<std::string> command;  // the program, searched in PATH, and its arguments
};

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
