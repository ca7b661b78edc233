// Shared by the subcommands that train, test and predict: the configuration, the processes that
// work by it, and their group.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troika/cluster/environment.h"
#include "troika/comm/group.h"
#include "troika/train/options/options.h"
#include "troika/train/options/run_mode.h"

namespace CLI {
class App;
}

namespace troika::cli {

struct ConfigArguments {
  std::string file;
  // For another mode than fit, CONFIG may be a checkpoint, too, and there must be one.
  train::RunMode mode = train::RunMode::fit;
  bool print_config = false;
  bool describe_config = false;
  std::optional<double> shutdown_seconds;  // of processes that this one starts
};
// CONFIG, --print-config, --describe-config, --shutdown-timeout, and any --section.name=value.
void add_config_arguments(CLI::App& command, ConfigArguments& arguments);
// Whether these are among the command's arguments.
bool takes_configuration(const CLI::App& command);

// The work of one process; the result is its exit code.
using WorkHere = std::function<int(train::TrainOptions, const cluster::Environment&)>;

// Runs the subcommand `name`: prints the configuration if that is all that was asked for; starts
// this program once per trainer.devices, with `more` arguments, if no launcher has started this
// process yet; else does the work here. `change`, if there is one, changes the options that were
// read.
int run_configured(const std::string& name, const ConfigArguments& arguments,
                   const std::vector<std::string>& overrides, const WorkHere& work,
                   const std::vector<std::string>& more = {},
                   const std::function<void(train::TrainOptions&)>& change = {});

// trainer.ckpt_path as validate, test and predict take it: `last` unless it is set.
std::string ckpt_to_judge(const train::TrainOptions& options);

// Counts the memory of tensors from here on, and refuses what there is no memory for unless
// trainer.memory_check is off.
void check_memory(const train::TrainOptions& options);

// Sets the threads of this process and connects it to the others, which blocks.
comm::Group join(const train::TrainOptions& options, const cluster::Environment& environment);
// From now on, writes the log of this process for the subcommand `name` to the run's folder, too.
void open_log(const std::string& name, const train::TrainOptions& options,
              const cluster::Environment& environment, const comm::Group& group);

}  // namespace troika::cli
