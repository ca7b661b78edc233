// Starts the ranks of this machine and watches over them: `troika launch -n N PROGRAM ARGS...`.
//
// The first failure is the message: the report names the rank that failed first, its words, how it
// ended and where its log is; ranks the launcher stopped itself are marked so. Nothing a rank
// started survives the launch; a SIGKILL of the launcher only daemons survive.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"

namespace troika::cluster {

// Launches, one on each machine, that agree on rounds, which begin with `min_nodes` to
// LaunchOptions::num_nodes of them. They meet at the endpoint: the first launch on its machine
// hosts the server of the others, and rank 0. It is the one that must not be lost.
struct ElasticOptions {
  int min_nodes = 1;
  std::string endpoint;  // host or host:port, [address]:port for IPv6; kDefaultPort
  std::string id;        // of the run, to refuse launches of others; "": a unique one for its ranks
  // How long a round waits for more machines once it has min_nodes, and for those.
  Milliseconds last_call_timeout{30'000};
  Milliseconds join_timeout{600'000};
};

struct LaunchOptions {
  int processes = 1;  // ranks on this machine
  // With several machines, launch() runs once on each of them with the same options but node_rank,
  // which elastic launches have not: it may change with each round.
  int num_nodes = 1;
  std::optional<ElasticOptions> elastic;
  int node_rank = 0;
  std::string master_address;  // of node 0; "" only with one node: 127.0.0.1
  int master_port = 0;         // 0: a free one, with several nodes kDefaultPort
  // That this launch and rank 0 listen on, by its name or address; "": see kInterfaceVariable.
  std::string interface;
  // Holds rank-N.log with both outputs of rank N, where of a line with carriage returns (a progress
  // bar) only the last state is kept. Empty: a fresh folder under the temporary directory, which is
  // removed unless a rank failed, left a flight record, or a signal ended the launch.
  std::filesystem::path log_dir;
  bool tee = false;  // show the other ranks' lines too, with "[rank N] " before each
  Milliseconds shutdown_timeout{5000};  // from SIGTERM (or a forwarded SIGINT) to SIGKILL
  Milliseconds settle_time{1000};       // that others get to fail on their own after the first
  // A round in which a rank failed is followed by another, up to so often; on one machine or
  // elastic.
  int max_restarts = 0;
  std::vector<std::string> command;  // program, searched in PATH, and its arguments
};

// Runs the command once per rank until all have ended, and returns the exit code for the launcher:
// 0 when all succeeded, else that of the first failure (128 + signal for a killed one), 127 for a
// program that cannot be executed, 128 + signal when SIGINT, SIGTERM or SIGHUP stopped the launch.
// Ranks that saved on request (ExitCode::requeued, ::stopped) have not failed: when all ranks ended
// so or succeeded, their code is the launch's, whatever stopped it.
// SIGUSR1 and SIGUSR2 are passed on to the ranks, to the programs alone, the other signals to their
// process groups.
//
// With max_restarts, a failure ends its round as it would end the launch; when no process of it is
// left, all ranks are started anew, with one more in TORCHELASTIC_RESTART_COUNT, and their logs go
// on. Failures that another try cannot help (ExitCode::usage, ::not_executable) end the launch, and
// so do SIGINT, SIGTERM and SIGHUP.
//
// Elastic launches end a round together, and begin the next one with whoever is there: after a
// failure, when a machine is lost or told to end, and, to take it in, when another one comes; only
// failures count as restarts. They all return the exit code of the run, the first failure's. The
// end of the hosting launch ends all of them.
//
// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT (a fresh one each round where the launcher chooses it),
// TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, TROIKA_ROUND (of an elastic run, also
// those that ended because machines came or went), TROIKA_NNODES=MIN:MAX in an elastic run,
// TROIKA_RUN_SECRET (a fresh one each round; see docs/security.md), TROIKA_SOCKET_IFNAME where
// `interface` is set, TROIKA_ERROR_FILE (see failure.h); where not set yet TORCHELASTIC_RUN_ID,
// OMP_NUM_THREADS = cores / processes and TROIKA_FLIGHT_RECORD (a folder beside the logs); and
// TROIKA_TTY=1 and its COLUMNS when standard error here is a terminal. Standard input is empty. The
// outputs of local rank 0 are passed on byte for byte.
//
// Takes over signal handling and child processes while it runs: one launch per process at a time.
// Throws Error(cluster, usage) for options that make no sense, also beside what srun started.
int launch(const LaunchOptions& options);

}  // namespace troika::cluster
