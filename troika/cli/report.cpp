#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "troika/checkpoint/checkpoint.h"
#include "troika/cli/commands.h"
#include "troika/observe/report/page.h"
#include "troika/train/options/options.h"

namespace troika::cli {

Entry add_report(CLI::App& app) {
  auto* command =
      app.add_subcommand("report", "write a page with curves, timings and options of a run");
  const auto run = std::make_shared<std::string>();
  command->add_option("RUN", *run, "folder of the run, e.g. runs/run, or a checkpoint in it")
      ->required();
  return {command, [run] {
            fmt::print("{}\n", observe::report::write_report(checkpoint::find_run(*run),
                                                             train::changed_options)
                                   .string());
            return 0;
          }};
}

}  // namespace troika::cli
