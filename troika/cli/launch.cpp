#include <CLI/CLI.hpp>

#include <memory>

#include "troika/cli/commands.h"
#include "troika/cluster/launcher.h"

namespace troika::cli {

Entry add_launch(CLI::App& app) {
  auto* command = app.add_subcommand(
      "launch", "start a program once per rank, with torchrun's variables, and watch over it");
  struct Arguments {
    cluster::LaunchOptions options;
    double shutdown_seconds = 5;
    std::string log_dir;
  };
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
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("PROGRAM", options.command, "program and its arguments")->required();
  // What follows the program belongs to it, whatever it looks like.
  command->prefix_command();
  return {command, [command, arguments] {
            auto options = arguments->options;
            for (const auto& extra : command->remaining()) options.command.push_back(extra);
            options.log_dir = arguments->log_dir;
            options.shutdown_timeout =
                Milliseconds(static_cast<int64_t>(arguments->shutdown_seconds * 1e3));
            return cluster::launch(options);
          }};
}

}  // namespace troika::cli
