#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <string_view>

#include "troika/base/error.h"
#include "troika/cli/commands.h"
#include "troika/cluster/failure.h"

namespace {

// CLI11 ends a subcommand at `--`; what follows is for the program to run.
troika::cli::AfterDashes cut_after_dashes(int& argc, char** argv) {
  const std::string_view subcommand = argc < 2 ? "" : argv[1];
  if (subcommand != "launch" && subcommand != "slurm") return std::nullopt;
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));
  if (dashes == end) return std::nullopt;
  argc = static_cast<int>(dashes - argv);
  return std::vector<std::string>(dashes + 1, end);
}

int run(int argc, char** argv) {
  const auto rest = cut_after_dashes(argc, argv);
  CLI::App app("Distributed training of neural networks on LibTorch", "troika");
  app.require_subcommand(1);
  const std::vector<troika::cli::Entry> entries{
      troika::cli::add_train(app),        troika::cli::add_validate(app),
      troika::cli::add_test(app),         troika::cli::add_predict(app),
      troika::cli::add_launch(app, rest), troika::cli::add_doctor(app),
      troika::cli::add_sample(app),       troika::cli::add_export(app),
      troika::cli::add_import(app),       troika::cli::add_bench(app),
      troika::cli::add_report(app),       troika::cli::add_memory(app),
      troika::cli::add_slurm(app, rest),  troika::cli::add_version(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked_for_help = error.get_exit_code() == 0;
    app.exit(error);
    return asked_for_help ? 0 : static_cast<int>(troika::ErrorKind::usage);
  }
  for (const auto& entry : entries) {
    if (entry.app->parsed()) return entry.run();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    troika::cluster::report_failure(error);
    return troika::exit_code(error);
  }
}
