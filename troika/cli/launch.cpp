#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cli/command_line.h"
#include "troika/cli/commands.h"
#include "troika/cluster/launch/launcher.h"
#include "troika/cluster/ranks/roles.h"

namespace troika::cli {

namespace {

constexpr double kWeekSeconds = 7 * 24 * 3600;
constexpr int kMaxNodes = 100'000;

struct Arguments {
  cluster::LaunchOptions options;
  std::string num_nodes = "1";
  double shutdown_seconds = 5;
  std::string log_dir;
  bool standalone = false;
  cluster::ElasticOptions elastic;
  double last_call_seconds = 30;
  double join_seconds = 600;
  int servers = 0;
  int workers = 0;  // 0: ranks, no parameter server
};

// The words that CLI11 left over, from the first that is not an option of launch, and those after
// `--`.
std::vector<std::string> program(const CLI::App& command, const AfterDashes& rest) {
  auto words = command.remaining();
  if (!words.empty()) require_option(command, words.front());
  if (rest) {
    // The first `--` ends launch's options; a `--` after the program's name belongs to the program.
    if (!words.empty()) words.emplace_back("--");
    words.insert(words.end(), rest->begin(), rest->end());
  }
  if (!words.empty() && words.front().empty()) {
    throw Error("launch", ErrorKind::usage,
                {.what = "program to launch",
                 .got = "an empty name",
                 .expected = "a program and its arguments"});
  }
  return words;
}

// "3" or "1:3"; without a colon, both are equal.
struct NodeRange {
  int min, max;
};
NodeRange parse_nodes(const std::string& text) {
  const size_t colon = text.find(':');
  const auto min = parse_int(text.substr(0, colon));
  const auto max = colon == std::string::npos ? min : parse_int(text.substr(colon + 1));
  if (!min || !max || *min < 1 || *max < *min || *max > kMaxNodes) {
    throw Error("launch", ErrorKind::usage,
                {.what = "--nnodes",
                 .got = text,
                 .expected = fmt::format("N, or MIN:MAX with 1 <= MIN <= MAX <= {}", kMaxNodes)});
  }
  return {static_cast<int>(*min), static_cast<int>(*max)};
}

int run(Arguments arguments, std::vector<std::string> command) {
  auto& options = arguments.options;
  options.command = std::move(command);
  options.log_dir = arguments.log_dir;
  options.shutdown_timeout = to_timeout("shutdown timeout", arguments.shutdown_seconds);
  const auto nodes = parse_nodes(arguments.num_nodes);
  if (arguments.standalone && nodes.max > 1) {
    throw Error("launch", ErrorKind::usage,
                {.what = "--standalone is for one machine",
                 .got = "--nnodes " + arguments.num_nodes,
                 .expected = "--nnodes 1, or --rdzv-endpoint HOST:PORT instead"});
  }
  options.num_nodes = nodes.max;
  if (arguments.workers != 0) {
    options.roles = {.servers = arguments.servers, .workers = arguments.workers};
    options.processes = cluster::processes_of(*options.roles);
  }
  if (!arguments.elastic.endpoint.empty()) {
    options.elastic = arguments.elastic;
    options.elastic->min_nodes = nodes.min;
    options.elastic->last_call_timeout =
        to_timeout("last-call timeout", arguments.last_call_seconds);
    options.elastic->join_timeout = to_timeout("join timeout", arguments.join_seconds);
  } else if (nodes.min != nodes.max) {
    throw Error("launch", ErrorKind::usage,
                {.what = "the launches have no common endpoint",
                 .got = fmt::format("--nnodes {} without --rdzv-endpoint", arguments.num_nodes),
                 .expected = "the host and port of one of them",
                 .hint = "on all machines the same: --rdzv-endpoint HOST:29400"});
  }
  return cluster::launch(options);
}

void add_elastic_options(CLI::App& command, Arguments& arguments, CLI::Option* endpoint) {
  command
      .add_option("--rdzv-id,--rdzv_id", arguments.elastic.id,
                  "name of the run, not a secret; launches with another name are refused")
      ->needs(endpoint);
  command
      .add_option("--rdzv-last-call-timeout", arguments.last_call_seconds,
                  "seconds for which MIN machines wait for more")
      ->capture_default_str()
      ->needs(endpoint);
  command
      .add_option("--rdzv-join-timeout", arguments.join_seconds, "seconds to wait for MIN machines")
      ->capture_default_str()
      ->needs(endpoint);
}

}  // namespace

Milliseconds to_timeout(const std::string& what, double seconds) {
  if (!(seconds >= 0 && seconds <= kWeekSeconds)) {
    throw Error("launch", ErrorKind::usage,
                {.what = what,
                 .got = fmt::format("{}", seconds),
                 .expected = fmt::format("a number of seconds from 0 to {}", kWeekSeconds)});
  }
  return Milliseconds(static_cast<int64_t>(seconds * 1e3));
}

Entry add_launch(CLI::App& app, const AfterDashes& rest) {
  auto* command = app.add_subcommand(
      "launch", "start a program once per rank, with torchrun's variables, and monitor it");
  const auto arguments = std::make_shared<Arguments>();
  auto& options = arguments->options;
  command
      ->add_option("-n,--nproc-per-node,--nproc_per_node", options.processes,
                   "ranks on this machine")
      ->capture_default_str();
  command->add_option("--nnodes", arguments->num_nodes, "machines; MIN:MAX with --rdzv-endpoint")
      ->capture_default_str();
  auto* endpoint =
      command->add_option("--rdzv-endpoint,--rdzv_endpoint", arguments->elastic.endpoint,
                          "HOST:PORT to which the launches of all machines connect; HOST has rank "
                          "0, and its loss ends the run");
  command
      ->add_flag("--standalone", arguments->standalone,
                 "one machine and any free port, which is the default; for torchrun's users")
      ->excludes(endpoint);
  command->add_option("--node-rank,--node_rank", options.node_rank, "number of this machine")
      ->capture_default_str()
      ->excludes(endpoint);
  command->add_option("--master-addr,--master_addr", options.master_address, "address of machine 0")
      ->excludes(endpoint);
  command
      ->add_option("--master-port,--master_port", options.master_port,
                   "port on which rank 0, or the scheduler of --workers, listens; 0: any free port")
      ->capture_default_str();
  command->add_option("--interface", options.interface,
                      "network interface or address that this launch and rank 0 listen on; "
                      "default: $TROIKA_SOCKET_IFNAME, otherwise all");
  command->add_option("--log-dir,--log_dir", arguments->log_dir,
                      "folder of rank-N.log; default: a temporary folder, kept on failure");
  command->add_flag("--tee", options.tee,
                    "show the output lines of all ranks, instead of rank 0's only");
  command
      ->add_option("--shutdown-timeout", arguments->shutdown_seconds,
                   "seconds from SIGTERM to SIGKILL")
      ->capture_default_str();
  command
      ->add_option("--max-restarts,--max_restarts", options.max_restarts,
                   "how often all ranks are restarted after one failed")
      ->capture_default_str();
  command
      ->add_flag(
          "--fault-tolerant,--fault_tolerant", options.fault_tolerant,
          "ranks are replicas of strategy ft_ddp or diloco: the end of one is not the end of the "
          "others, and --max-restarts is how often one is started again alone")
      ->excludes("--nnodes")
      ->excludes(endpoint);
  auto* workers =
      command
          ->add_option(
              "--workers", arguments->workers,
              "instead of ranks, the workers of a parameter server (TROIKA_ROLE); the end of "
              "one process is not the end of the others")
          ->check(CLI::PositiveNumber)
          ->excludes("-n")
          ->excludes("--nnodes");
  command
      ->add_option("--servers", arguments->servers,
                   "servers of --workers; 0: each worker's process has one")
      ->capture_default_str()
      ->needs(workers);
  add_elastic_options(*command, *arguments, endpoint);
  command->footer(
      "PROGRAM and its ARGUMENTS follow the options, with or without -- before them. Options after "
      "PROGRAM are the program's.");
  command->prefix_command();
  return {command, [command, arguments, rest] { return run(*arguments, program(*command, rest)); }};
}

}  // namespace troika::cli
