#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cli/command_line.h"
#include "troika/cli/commands.h"
#include "troika/cli/session.h"
#include "troika/comm/end_with.h"
#include "troika/train/options/options.h"

namespace {

// Cuts off the words after `--`, at which CLI11 would end a subcommand; they belong to the program
// to run.
troika::cli::AfterDashes cut_after_dashes(int& argc, char** argv) {
  const std::string_view subcommand = argc < 2 ? "" : argv[1];
  if (subcommand != "launch" && subcommand != "slurm") return std::nullopt;
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));
  if (dashes == end) return std::nullopt;
  argc = static_cast<int>(dashes - argv);
  return std::vector<std::string>(dashes + 1, end);
}

// Returns whether the command line begins with --check, and removes it.
bool cut_check(int& argc, char** argv) {
  if (argc < 2 || argv[1] != std::string_view("--check")) return false;
  std::copy(argv + 2, argv + argc, argv + 1);
  --argc;
  return true;
}

// Joins `--section.name value` into `--section.name=value`: CLI11 does not know these options and
// would take the value for CONFIG.
std::vector<std::string> with_values_joined(int argc, char** argv) {
  std::vector<std::string> words;
  const auto lacks_value = [](const std::string& word) {
    return word.starts_with("--") && word.find('.') != std::string::npos &&
           word.find('=') == std::string::npos;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!words.empty() && lacks_value(words.back()) && !word.starts_with("--")) {
      words.back() += "=" + std::string(word);
    } else {
      words.emplace_back(word);
    }
  }
  return words;
}

// Also checks commands within commands, such as `troika slurm submit`.
void require_known_command(const std::vector<std::string>& words, CLI::App* app) {
  for (const auto& word : words) {
    std::vector<std::string> names;
    for (const auto* command : app->get_subcommands({})) names.push_back(command->get_name());
    if (names.empty() || word.starts_with('-')) return;
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      throw troika::Error("troika", troika::ErrorKind::usage,
                          {.what = "unknown command",
                           .got = word,
                           .expected = fmt::format("one of {}", fmt::join(names, ", ")),
                           .hint = "did you mean " + troika::nearest(word, names) + "?"});
    }
    app = app->get_subcommand(word);
  }
}

// An option without a section is an option of the command, or a key that lacks its section.
void require_known_options(const CLI::App& command) {
  troika::train::TrainOptions options;
  const auto table = troika::train::make_table(options);
  std::vector<std::string> keys;
  for (const auto& [key, choices] : table.choices()) keys.push_back("--" + key);
  for (const auto& word : command.remaining()) {
    const auto name = word.substr(0, word.find('='));
    if (name.find('.') != std::string::npos) continue;
    const auto known = name.starts_with("--") ? table.known_key(name.substr(2)) : "";
    troika::cli::require_option(command, word, keys, known.empty() ? "" : "--" + known);
  }
}

int run(int argc, char** argv) {
  const bool check_only = cut_check(argc, argv);
  const auto rest = cut_after_dashes(argc, argv);
  CLI::App app("Distributed training of neural networks on LibTorch", "troika");
  app.require_subcommand(1);
  app.set_version_flag("--version", troika::cli::versions);
  app.add_flag("--check")->description(
      "before a command: check its arguments, print the configuration that it would use, and do "
      "nothing");
  const std::vector<troika::cli::Entry> entries{
      troika::cli::add_train(app),        troika::cli::add_validate(app),
      troika::cli::add_test(app),         troika::cli::add_predict(app),
      troika::cli::add_launch(app, rest), troika::cli::add_doctor(app),
      troika::cli::add_sample(app),       troika::cli::add_export(app),
      troika::cli::add_import(app),       troika::cli::add_bench(app),
      troika::cli::add_report(app),       troika::cli::add_memory(app),
      troika::cli::add_plan(app),         troika::cli::add_profile(app),
      troika::cli::add_simulate(app),     troika::cli::add_slurm(app, rest),
      troika::cli::add_version(app),      troika::cli::add_completion(app),
      troika::cli::add_server(app),       troika::cli::add_swarm(app)};
  // The words after PROGRAM belong to it, so they must not change.
  const bool starts_program =
      argc > 1 && (argv[1] == std::string_view("launch") || argv[1] == std::string_view("slurm"));
  auto words = starts_program ? std::vector<std::string>(argv + 1, argv + argc)
                              : with_values_joined(argc, argv);
  require_known_command(words, &app);
  // The words that name the command, which may be one within another.
  const CLI::App* command = &app;
  size_t depth = 0;
  while (depth < words.size()) {
    const auto inner =
        command->get_subcommands([&](const auto* one) { return one->get_name() == words[depth]; });
    if (inner.empty()) break;
    command = inner.front();
    ++depth;
  }
  const bool is_configured = troika::cli::takes_configuration(*command);
  if (check_only && is_configured) {
    words.insert(words.begin() + static_cast<std::ptrdiff_t>(depth), "--print-config");
  }
  std::reverse(words.begin(), words.end());  // CLI11 expects them in reverse
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) troika::cli::refuse(app, error);
    return app.exit(error);  // help was asked for
  }
  if (check_only && !is_configured) return 0;
  for (const auto& entry : entries) {
    if (!entry.app->parsed()) continue;
    if (is_configured) require_known_options(*command);
    return entry.run();
  }
  return 0;
}

int exit_code_of(int argc, char** argv) try {
  return run(argc, argv);
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}

}  // namespace

// Avoids returning from main(): LibTorch would unregister its operators one by one, which takes a
// sixth of a short command's time.
int main(int argc, char** argv) {
  const int code = exit_code_of(argc, argv);
  std::cout.flush();
  std::fflush(nullptr);
  std::quick_exit(code);
}
