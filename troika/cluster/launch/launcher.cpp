#include "troika/cluster/launch/launcher.h"

#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/cluster/discovery/endpoint.h"
#include "troika/cluster/discovery/launcher_variables.h"
#include "troika/cluster/launch/supervisor.h"
#include "troika/cluster/ranks/roles.h"

namespace troika::cluster {

namespace {

// More than any machine has cores. Prevents a mistake from forking endlessly.
constexpr int kMaxProcesses = 4096;

void refuse(const std::string& what, const std::string& got, const std::string& expected,
            const std::string& hint = "") {
  throw Error("cluster", ErrorKind::usage,
              {.what = what, .got = got, .expected = expected, .hint = hint});
}

void check_elastic(const LaunchOptions& options) {
  const auto& elastic = *options.elastic;
  if (elastic.min_nodes < 1 || elastic.min_nodes > options.num_nodes) {
    refuse("number of nodes", fmt::format("{}:{}", elastic.min_nodes, options.num_nodes),
           "MIN:MAX with 1 <= MIN <= MAX");
  }
  if (options.node_rank != 0 || !options.master_address.empty()) {
    refuse("node rank and master address", "values for an elastic run", "none",
           "--rdzv-endpoint numbers the launches, and its host has rank 0");
  }
  for (const auto& [what, time] : {std::pair("last-call timeout", elastic.last_call_timeout),
                                   std::pair("join timeout", elastic.join_timeout)}) {
    if (time < Milliseconds(0)) refuse(what, fmt::format("{} ms", time.count()), "a time >= 0");
  }
  parse_endpoint(elastic.endpoint);
}

void check_roles(const LaunchOptions& options) {
  if (options.roles->servers < 0) {
    refuse("number of servers", std::to_string(options.roles->servers), "an integer >= 0");
  }
  if (options.roles->workers < 1) {
    refuse("number of workers", std::to_string(options.roles->workers), "an integer >= 1");
  }
  if (options.processes != processes_of(*options.roles)) {
    refuse("number of processes", std::to_string(options.processes),
           std::to_string(processes_of(*options.roles)),
           "servers and workers say how many processes there are");
  }
  if (options.elastic || options.num_nodes > 1 || options.max_restarts > 0) {
    refuse("servers and workers", "several machines or restarts", "one machine",
           "a world on several machines is started by hand, each process with its variables "
           "(docs/parameter-server.md)");
  }
  if (!options.interface.empty() || !options.master_address.empty()) {
    refuse("servers and workers", "an interface or a master address", "neither",
           "the scheduler listens on 127.0.0.1; --master-port is its port");
  }
}

void check_fault_tolerant(const LaunchOptions& options) {
  if (options.elastic || options.num_nodes > 1 || options.roles) {
    refuse("a fault-tolerant launch", "several machines, or servers", "replicas on one machine");
  }
  if (!options.interface.empty() || !options.master_address.empty()) {
    refuse("a fault-tolerant launch", "an interface or a master address", "neither",
           "its lighthouse listens on 127.0.0.1; --master-port is its port");
  }
  // The helper process that ends replicas with the launcher keeps their number in memory.
  constexpr int kMostRestarts = 100'000;
  if (options.max_restarts > kMostRestarts) {
    refuse("number of restarts of a fault-tolerant launch", std::to_string(options.max_restarts),
           fmt::format("at most {}", kMostRestarts));
  }
}

void check(const LaunchOptions& options) {
  if (options.roles) check_roles(options);
  if (options.fault_tolerant) check_fault_tolerant(options);
  if (options.processes < 1) {
    refuse("number of processes", std::to_string(options.processes), "an integer >= 1");
  }
  if (options.processes > kMaxProcesses) {
    refuse("number of processes", std::to_string(options.processes),
           fmt::format("at most {} on one machine", kMaxProcesses));
  }
  if (options.num_nodes < 1) {
    refuse("number of nodes", std::to_string(options.num_nodes), "an integer >= 1");
  }
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes) {
    refuse("node rank", std::to_string(options.node_rank),
           fmt::format("an integer from 0 to {}", options.num_nodes - 1),
           fmt::format("the number of nodes is {}", options.num_nodes));
  }
  const Variables variables = process_variable;
  const int launchers = slurm_step_tasks(Reader(variables)).value_or(1);
  const bool is_one_of_them =
      options.elastic ? launchers <= options.num_nodes : launchers == options.num_nodes;
  if (launchers > 1 && !is_one_of_them) {
    refuse("number of nodes",
           fmt::format("{} with SLURM_STEP_NUM_TASKS={}", options.num_nodes, launchers),
           "one launcher on each node",
           "srun --nodes=N --ntasks-per-node=1 troika launch --nnodes N --node-rank "
           "$SLURM_NODEID, or do without troika launch: srun can start the ranks");
  }
  if (options.elastic) check_elastic(options);
  const bool is_one_of_numbered = options.num_nodes > 1 && !options.elastic;
  if (is_one_of_numbered && options.master_address.empty()) {
    refuse("master address", "none", "the host name or address of node 0",
           "needed with more than one node");
  }
  if (options.master_port < 0 || options.master_port > 65535) {
    refuse("master port", std::to_string(options.master_port), "an integer from 1 to 65535");
  }
  if (options.shutdown_timeout < Milliseconds(0)) {
    refuse("shutdown timeout", fmt::format("{} ms", options.shutdown_timeout.count()),
           "a time >= 0");
  }
  if (options.max_restarts < 0) {
    refuse("number of restarts", std::to_string(options.max_restarts), "an integer >= 0");
  }
  if (options.max_restarts > 0 && is_one_of_numbered) {
    refuse("restarts", fmt::format("{} with {} nodes", options.max_restarts, options.num_nodes),
           "one node",
           "use --rdzv-endpoint, with which launches of several nodes restart together");
  }
  if (options.command.empty()) refuse("program to launch", "none", "a program and its arguments");
}

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  return Supervisor(options).run();
}

}  // namespace troika::cluster
