// The subcommands of the program `troika`. Each adds itself to the command line. A Command returns
// the process's exit code.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"

namespace CLI {
class App;
}

namespace troika::cli {

using Command = std::function<int()>;

// The help text of arguments that find_checkpoint() accepts.
inline constexpr const char* kCheckpointHelp =
    "the folder of a run (its last checkpoint), RUN/best, the folder of a checkpoint, or a file of "
    "weights";

// The result of an add function, which declares the options on a new subcommand of `app`: the
// subcommand, and the function to run if it is chosen.
struct Entry {
  CLI::App* app;
  Command run;
};

// The words after the first `--` of the command line, which CLI11 does not parse; empty optional if
// there is no `--`.
using AfterDashes = std::optional<std::vector<std::string>>;

// Converts an option's seconds; throws Error(usage), naming the option, for a number that is not a
// valid time.
Milliseconds to_timeout(const std::string& what, double seconds);

// The versions of Troika and LibTorch, as printed by `--version`.
std::string versions();

Entry add_train(CLI::App& app);
Entry add_validate(CLI::App& app);
Entry add_test(CLI::App& app);
Entry add_predict(CLI::App& app);
Entry add_launch(CLI::App& app, const AfterDashes& rest);
Entry add_doctor(CLI::App& app);
Entry add_sample(CLI::App& app);
Entry add_bench(CLI::App& app);
Entry add_slurm(CLI::App& app, const AfterDashes& rest);
Entry add_memory(CLI::App& app);
Entry add_plan(CLI::App& app);
Entry add_profile(CLI::App& app);
Entry add_simulate(CLI::App& app);
Entry add_report(CLI::App& app);
Entry add_server(CLI::App& app);
Entry add_swarm(CLI::App& app);
Entry add_export(CLI::App& app);
Entry add_import(CLI::App& app);
Entry add_version(CLI::App& app);
Entry add_completion(CLI::App& app);

}  // namespace troika::cli
