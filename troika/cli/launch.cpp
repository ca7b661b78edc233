#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "troika/base/error.h"
#include "troika/cli/commands.h"
#include "troika/cluster/launcher.h"

namespace troika::cli {

namespace {

constexpr double kWeekSeconds = 7 * 24 * 3600;

struct Arguments {
  cluster::LaunchOptions options;
  double shutdown_seconds = 5;
  std::string log_dir;
};

// What CLI11 left over, from the first word that is no option of ours, and what followed `--`.
std::vector<std::string> program(std::vector<std::string> words, const AfterDashes& rest) {
  if (!words.empty() && words.front().starts_with('-')) {
    throw Error("launch", ErrorKind::usage,
                {.what = "unknown option",
                 .got = words.front(),
                 .expected = "an option of troika launch or a program",
                 .hint = "a program whose name begins with a dash follows --"});
  }
  if (rest) {
    // The first `--` only ends our options; one after the program's name is the program's.
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

int run(Arguments arguments, std::vector<std::string> command) {
  const double seconds = arguments.shutdown_seconds;
  if (!(seconds >= 0 && seconds <= kWeekSeconds)) {
    throw Error("launch", ErrorKind::usage,
                {.what = "shutdown timeout",
                 .got = fmt::format("{}", seconds),
                 .expected = fmt::format("a number of seconds from 0 to {}", kWeekSeconds)});
  }
  auto& options = arguments.options;
  options.command = std::move(command);
  options.log_dir = arguments.log_dir;
  options.shutdown_timeout = Milliseconds(static_cast<int64_t>(seconds * 1e3));
  return cluster::launch(options);
}

}  // namespace

Entry add_launch(CLI::App& app, const AfterDashes& rest) {
  auto* command = app.add_subcommand(
      "launch", "start a program once per rank, with torchrun's variables, and watch over it");
  const auto arguments = std::make_shared<Arguments>();
  auto& options = arguments->options;
  command->add_option("-n,--nproc-per-node", options.processes, "ranks on this machine")
      ->capture_default_str();
  command->add_option("--nnodes", options.num_nodes, "machines")->capture_default_str();
  command->add_option("--node-rank", options.node_rank, "which of them this is")
      ->capture_default_str();
  command->add_option("--master-addr", options.master_address, "address of machine 0");
  command->add_option("--master-port", options.master_port, "where rank 0 listens; 0: any free one")
      ->capture_default_str();
  command->add_option("--log-dir", arguments->log_dir,
                      "folder of rank-N.log; default: a temporary one, kept on failure");
  command->add_flag("--tee", options.tee, "show the lines of all ranks, not of rank 0 alone");
  command
      ->add_option("--shutdown-timeout", arguments->shutdown_seconds,
                   "seconds from SIGTERM to SIGKILL")
      ->capture_default_str();
  command
      ->add_option("--max-restarts", options.max_restarts,
                   "how often all ranks start anew after one failed")
      ->capture_default_str();
  command->footer(
      "PROGRAM and its ARGUMENTS follow the options, after -- or not; all from PROGRAM on is its "
      "own.");
  command->prefix_command();
  return {command, [command, arguments, rest] {
            return run(*arguments, program(command->remaining(), rest));
          }};
}

}  // namespace troika::cli
