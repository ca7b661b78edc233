#include "troika/cli/session.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <thread>
#include <utility>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cluster/launch/launcher.h"
#include "troika/comm/local/local.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/train/engine/served_exchange.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/quorum_run.h"
#include "troika/train/run/run_folder.h"
#include "troika/train/run/run_group.h"
#include "troika/train/trainer.h"

namespace troika::cli {

namespace {

// Files of other subcommands get a prefix, so that they do not replace those of training.
std::filesystem::path file_of(const train::TrainOptions& options, const std::string& name,
                              const std::string& file) {
  return train::run_folder(options) / (name == "train" ? file : name + "-" + file);
}

// Starts this program once per device and supervises the processes. Passes them the resolved
// configuration, which, unlike CONFIG, can be read many times and cannot change meanwhile.
int launch_self(train::TrainOptions& options, const config::Table& table, const std::string& name,
                const std::vector<std::string>& more, std::optional<double> shutdown_seconds) {
  std::optional<train::RunFolder> claimed;
  if (name == "train") {
    claimed = train::RunFolder::claim(options, /*goes_on_when_started_again=*/true);
    train::RunFolder::claim_for_children(options);
  }
  const auto config = file_of(options, name, "config.toml");
  write_file_atomically(config, table.to_toml());
  cluster::LaunchOptions launch;
  launch.processes =
      static_cast<int>(std::min<int64_t>(options.trainer.devices, std::numeric_limits<int>::max()));
  launch.fault_tolerant = name == "train" && train::trains_in_quorum(options);
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), name,
                    std::filesystem::absolute(config).string()};
  launch.command.insert(launch.command.end(), more.begin(), more.end());
  launch.log_dir = file_of(options, name, "logs");
  // A step has to end and its checkpoint has to be written within this time.
  launch.shutdown_timeout = to_timeout("shutdown timeout", shutdown_seconds.value_or(30));
  return cluster::launch(launch);
}

void set_threads(const train::TrainOptions& options, const cluster::Environment& environment) {
  int64_t threads = options.trainer.threads;
  if (threads == 0 && std::getenv("OMP_NUM_THREADS")) return;
  if (threads == 0) {
    threads =
        std::max<int64_t>(1, std::thread::hardware_concurrency() / environment.local_world_size);
  }
  at::set_num_threads(static_cast<int>(threads));
}

// Whether one of Troika's launchers already keeps this process's output in the run's folder.
bool output_is_kept(const std::filesystem::path& folder) {
  const char* error_file = std::getenv("TROIKA_ERROR_FILE");
  std::error_code none;
  return error_file &&
         std::filesystem::equivalent(std::filesystem::path(error_file).parent_path(), folder, none);
}

// The options of a process of `troika launch --servers S --workers W`, which only training uses.
train::TrainOptions with_servers(train::TrainOptions options, const server::WorldOptions& role,
                                 const std::string& name) {
  if (name != "train") {
    throw Error("cluster", ErrorKind::usage,
                {.what = "servers were launched beside the ranks",
                 .got = "troika " + name,
                 .expected = "troika train",
                 .hint = "troika launch -n starts ranks without servers"});
  }
  return train::with_launched_servers(std::move(options), role);
}

}  // namespace

std::string ckpt_to_judge(const train::TrainOptions& options) {
  const auto& ckpt = options.trainer.ckpt_path;
  return ckpt.empty() ? "last" : ckpt;
}

void add_config_arguments(CLI::App& command, ConfigArguments& arguments) {
  command.add_option(
      "CONFIG,--config", arguments.file,
      arguments.mode != train::RunMode::fit
          ? std::string("TOML file, or a checkpoint with its own options: ") + kCheckpointHelp
          : "TOML file; without one, the defaults");
  command.add_flag("--print-config", arguments.print_config,
                   "print the resolved configuration and stop");
  command.add_flag("--describe-config", arguments.describe_config,
                   "print all options with their defaults and meanings, and stop");
  command.add_option(
      "--shutdown-timeout", arguments.shutdown_seconds,
      "with trainer.devices > 1: seconds from SIGTERM or Ctrl-C to SIGKILL; default: 30");
  command.allow_extras();
  command.footer(
      "Any option of CONFIG may follow as --section.name=value or --section.name value.");
}

bool takes_configuration(const CLI::App& command) {
  return command.get_option_no_throw("CONFIG") != nullptr;
}

int run_configured(const std::string& name, const ConfigArguments& arguments,
                   const std::vector<std::string>& overrides, const WorkHere& work,
                   const std::vector<std::string>& more,
                   const std::function<void(train::TrainOptions&)>& change) {
  train::TrainOptions options;
  auto table = train::make_table(options);
  if (arguments.describe_config) {
    std::cout << table.to_markdown();
    return 0;
  }
  const bool judges = arguments.mode != train::RunMode::fit;
  if (judges && names_checkpoint(arguments.file)) {
    read_checkpoint_configuration(table, options, arguments.file, overrides);
  } else {
    read_configuration(table, arguments.file, overrides);
  }
  if (change) change(options);
  options = train::with_plan(std::move(options));
  if (arguments.print_config) {
    std::cout << table.to_toml();
    return 0;
  }
  const auto role = parallel::launched_role();
  const bool has_servers = role.role != server::WorldRole::alone;
  if (has_servers) options = with_servers(std::move(options), role, name);
  if (has_servers && role.role != server::WorldRole::worker) {
    train::serve_parameters(options, role);
    return 0;
  }
  if (name != "train") train::require_no_lighthouse("troika " + name);
  const auto environment = cluster::discover();
  // Comes before the logs of this command create a folder within the run's folder.
  if (judges && environment.rank == 0) {
    train::checkpoint_to_judge(arguments.mode, train::run_folder(options), ckpt_to_judge(options));
  }
  if (environment.launcher == "none" && options.trainer.devices > 1 &&
      !train::trains_in_threads(options)) {
    return launch_self(options, table, name, more, arguments.shutdown_seconds);
  }
  if (arguments.shutdown_seconds) {
    throw Error("train", ErrorKind::usage,
                {.what = "--shutdown-timeout without processes to wait for",
                 .got = fmt::format("trainer.devices = {} and launcher {}", options.trainer.devices,
                                    environment.launcher),
                 .expected = "trainer.devices > 1 and no launcher",
                 .hint = "troika launch and Slurm have their own"});
  }
  return work(options, environment);
}

comm::Group join(const train::TrainOptions& options, const cluster::Environment& environment,
                 bool is_alone) {
  set_threads(options, environment);
  if (environment.world_size > 1) log::set_prefix(fmt::format("rank {}", environment.rank));
  const auto world = train::world_options(options);
  return is_alone ? comm::local::alone(world.group) : comm::world(environment, world);
}

void check_memory(const train::TrainOptions& options) {
  compat::count_tensor_memory();
  if (options.trainer.memory_check == "off") return;
  compat::refuse_tensors_beyond_memory(
      "`troika memory` shows what would fit; trainer.memory_check=off starts the run in any case");
}

void open_log(const std::string& name, const train::TrainOptions& options,
              const cluster::Environment& environment, const comm::Group& group) {
  const auto folder = file_of(options, name, "logs");
  if (!output_is_kept(folder)) {
    log::also_to_file(folder / fmt::format("rank-{}.log", environment.rank));
  }
  log::info("{}, back end {}", cluster::describe(environment), group.backend());
}

}  // namespace troika::cli
