// The options of a launch of ranks on this machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"

namespace troika::cluster {

// Options of an elastic run: launches, one per machine, that agree on rounds. A round has
// `min_nodes` to LaunchOptions::num_nodes of them. They connect to `endpoint`: the first launch on
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

// A parameter server on this machine: one process for the scheduler, and those of servers and
// workers. With 0 servers, each worker's process has a server too. The end of one process is not
// the end of the others, unless it is the scheduler's.
struct RoleOptions {
  int servers = 0;
  int workers = 1;
};

struct LaunchOptions {
  // The processes are replicas that go on without each other (strategies ft_ddp and diloco), on one
  // machine.
  bool fault_tolerant = false;
  int processes = 1;  // number of ranks on this machine; with `roles`, of all processes
  std::optional<RoleOptions> roles;
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
  Milliseconds grace_time{1000};  // after the first failure, for other ranks to fail by themselves
  // How many failed rounds are followed by a new round; if fault_tolerant, how many failed replicas
  // are followed by another process in their place. Only on a single machine or in elastic
  // runs.
  int max_restarts = 0;
  std::vector<std::string> command;  // the program, searched in PATH, and its arguments
};

}  // namespace troika::cluster
