#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "troika/cli/commands.h"
#include "troika/train/checkpoint/checkpoint.h"
#include "troika/train/report/page.h"

namespace troika::cli {

Entry add_report(CLI::App& app) {
  auto* command = app.add_subcommand("report", "make a page from what a training run left");
  const auto run = std::make_shared<std::string>();
  command->add_option("RUN", *run, "folder of the run, e.g. runs/run, or a checkpoint in it")
      ->required();
  return {command, [run] {
            fmt::print("{}\n", train::report::write_report(train::find_run(*run)).string());
            return 0;
          }};
}

}  // namespace troika::cli
