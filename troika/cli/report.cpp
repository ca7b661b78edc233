#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "troika/base/file.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/cli/commands.h"
#include "troika/cli/refuse_argument.h"
#include "troika/observe/report/compared_runs.h"
#include "troika/observe/report/page.h"
#include "troika/train/options/options.h"

namespace troika::cli {

namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  bool compares = false;
  std::string metric, mode, output = "comparison.html";
};

int compare(const ReportArguments& arguments) {
  std::vector<std::filesystem::path> folders;
  for (const auto& run : arguments.runs) folders.push_back(checkpoint::find_run(run));
  observe::report::CompareOptions options{.metric = arguments.metric};
  if (!arguments.mode.empty()) options.lower_is_better = arguments.mode == "min";
  const auto compared = observe::report::compare_runs(folders, options);
  write_file_atomically(arguments.output, observe::report::comparison_page(compared));
  fmt::print("{}{}\n", observe::report::comparison_text(compared), arguments.output);
  return 0;
}

int report(const ReportArguments& arguments) {
  if (arguments.compares) return compare(arguments);
  if (arguments.runs.size() > 1) {
    refuse_argument("report", "RUN", fmt::format("{} runs", arguments.runs.size()), "one",
                    "--compare compares several");
  }
  fmt::print("{}\n", observe::report::write_report(checkpoint::find_run(arguments.runs.front()),
                                                   train::changed_options)
                         .string());
  return 0;
}

}  // namespace

Entry add_report(CLI::App& app) {
  auto* command = app.add_subcommand(
      "report", "write a page with curves, timings and options of a run, or compare runs");
  const auto arguments = std::make_shared<ReportArguments>();
  command
      ->add_option("RUN", arguments->runs,
                   "folder of the run, e.g. runs/run, or a checkpoint in it")
      ->required();
  auto* compares = command->add_flag(
      "--compare", arguments->compares,
      "compare a metric of several runs, over steps, measured and simulated time");
  command
      ->add_option("--metric", arguments->metric,
                   "with --compare: a column of metrics.csv; default: validation/accuracy, "
                   "validation/loss or train/loss")
      ->needs(compares);
  command
      ->add_option("--mode", arguments->mode,
                   "with --compare: whether the least or the greatest value is the best; default: "
                   "min for losses, errors and perplexities")
      ->check(CLI::IsMember({"min", "max"}))
      ->needs(compares);
  command
      ->add_option("--output", arguments->output,
                   "with --compare: the page to write; default: comparison.html")
      ->needs(compares);
  return {command, [arguments] { return report(*arguments); }};
}

}  // namespace troika::cli
