// The subcommands of the program `troika`. Each adds itself to the command line; what it returns is
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

// The help of arguments that find_checkpoint() takes.
inline constexpr const char* kCheckpointHelp =
    "the folder of a run (its last checkpoint), RUN/best, the folder of a checkpoint, or a file of "
    "weights";

// Each declares its options on `app`'s new subcommand and gives back what runs when it is chosen.
struct Entry {
  CLI::App* app;
  Command run;
};

// The words after the first `--` of the command line, which `app` does not get to parse; nothing
// without one.
using AfterDashes = std::optional<std::vector<std::string>>;

// An option's seconds; throws Error(usage) naming it for a number that is no sensible time.
Milliseconds to_timeout(const std::string& what, double seconds);

// The versions of Troika and LibTorch, as `--version` prints them.
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
Entry add_simulate(CLI::App& app);
Entry add_report(CLI::App& app);
Entry add_export(CLI::App& app);
Entry add_import(CLI::App& app);
Entry add_version(CLI::App& app);
Entry add_completion(CLI::App& app);

}  // namespace troika::cli
