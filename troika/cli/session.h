// Shared by the subcommands that train, test and predict: the configuration, the processes, and
// their group.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troika/cluster/discovery/environment.h"
#include "troika/comm/group.h"
#include "troika/train/options/options.h"
#include "troika/train/options/run_mode.h"

namespace CLI {
class App;
}

namespace troika::cli {

struct ConfigArguments {
  std::string file;
  // In modes other than fit, CONFIG is required, and may also be a checkpoint.
  train::RunMode mode = train::RunMode::fit;
  bool print_config = false;
  bool describe_config = false;
  std::optional<double> shutdown_seconds;  // of processes that this one starts
};
// Adds CONFIG, --print-config, --describe-config and --shutdown-timeout, and allows
// --section.name=value.
void add_config_arguments(CLI::App& command, ConfigArguments& arguments);
// Whether the command has these arguments.
bool takes_configuration(const CLI::App& command);

// The work of one process; returns its exit code.
using WorkHere = std::function<int(train::TrainOptions, const cluster::Environment&)>;

// Runs the subcommand `name`. Prints the configuration if only this was requested. Otherwise, if no
// launcher has started this process and trainer.devices > 1 counts processes, starts this program
// once for each device, with the `more` arguments. Otherwise calls `work` here. `change`, if not
// empty, modifies the options after they were read.
int run_configured(const std::string& name, const ConfigArguments& arguments,
                   const std::vector<std::string>& overrides, const WorkHere& work,
                   const std::vector<std::string>& more = {},
                   const std::function<void(train::TrainOptions&)>& change = {});

// The value of trainer.ckpt_path for validate, test and predict; "last" if it is not set.
std::string ckpt_to_judge(const train::TrainOptions& options);

// Counts the bytes of tensors from now on. Refuses allocations beyond the available memory unless
// trainer.memory_check is off.
void check_memory(const train::TrainOptions& options);

// Sets the number of threads of this process and connects it to the other processes; blocks. With
// `is_alone`, returns a group of this process alone.
comm::Group join(const train::TrainOptions& options, const cluster::Environment& environment,
                 bool is_alone = false);
// Copies the log of this process into the run's folder from now on, for the subcommand `name`.
void open_log(const std::string& name, const train::TrainOptions& options,
              const cluster::Environment& environment, const comm::Group& group);

}  // namespace troika::cli
