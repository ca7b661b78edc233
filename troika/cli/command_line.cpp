#include "troika/cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <string_view>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::cli {

namespace {

template <typename E>
bool is(const CLI::ParseError& problem) {
  return dynamic_cast<const E*>(&problem) != nullptr;
}

// The innermost command that CLI11 was parsing when it failed.
const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.back());
}

std::string path_of(const CLI::App& command) {
  const auto* parent = command.get_parent();
  return parent ? path_of(*parent) + " " + command.get_name() : command.get_name();
}

// The top-level command of the program that is or contains `command`.
const CLI::App& outer(const CLI::App& command) {
  const auto* parent = command.get_parent();
  return parent && parent->get_parent() ? outer(*parent) : command;
}

[[noreturn]] void fail(const CLI::App& command, const ErrorText& text) {
  throw Error(outer(command).get_name(), ErrorKind::usage, text);
}

std::string see_help(const CLI::App& command) {
  return fmt::format("`{} --help` shows what it takes", path_of(command));
}

// CLI11's names of types in messages such as "1 required INT missing".
std::string type_text(const std::string& type) {
  if (type.starts_with("INT")) return "an integer";
  if (type.starts_with("UINT")) return "an integer >= 0";
  if (type.starts_with("FLOAT")) return "a number";
  return "a value";
}

// Returns the expectation in a message of a CLI11 check, such as "Value 0 not in range 1 to
// 1000000" or "zsh not in {bash}".
std::string expected_by(const std::string& message) {
  constexpr std::string_view kNotIn = " not in ";
  const size_t at = message.find(kNotIn);
  if (at == std::string::npos) return {};
  const auto range = message.substr(at + kNotIn.size());
  if (range.starts_with("range ")) return "from " + range.substr(6);
  const auto names = split(range.substr(1, range.size() - 2), ',');  // within braces
  return fmt::format("one of {}", fmt::join(names, ", "));
}

std::string without(std::string text, std::string_view part) {
  const size_t at = text.find(part);
  if (at != std::string::npos) text.erase(at, part.size());
  return text;
}

[[noreturn]] void refuse_value(const CLI::App& command, const std::string& name,
                               const std::string& message) {
  const auto* option = command.get_option_no_throw(name);
  ErrorText text{.what = name, .expected = expected_by(message)};
  if (option) {
    text.got = fmt::format("{}", fmt::join(option->results(), ","));
    if (text.expected.empty()) text.expected = type_text(option->get_type_name());
    text.hint = option->get_description();
  }
  fail(command, text);
}

void refuse_extra(const CLI::App& command) {
  const auto words = command.remaining();
  if (words.empty()) return;
  const std::string& word = words.front();
  require_option(command, word);
  fail(command, {.what = "unexpected argument", .got = word, .hint = see_help(command)});
}

}  // namespace

void require_option(const CLI::App& command, const std::string& word,
                    const std::vector<std::string>& more, const std::string& known) {
  if (!word.starts_with('-')) return;
  const auto name = word.substr(0, word.find('='));
  std::vector<std::string> names = more;
  for (const auto* option : command.get_options(nullptr)) {
    for (const auto& one : option->get_lnames()) names.push_back("--" + one);
  }
  const auto meant = known.empty() ? nearest(name, names) : known;
  fail(command,
       {.what = "unknown option",
        .got = word,
        .expected = more.empty() ? "" : "an option of the command, or --section.name=value",
        .hint = fmt::format("{}{}", meant.empty() ? "" : "did you mean " + meant + "? ",
                            see_help(command))});
}

void refuse(const CLI::App& app, const CLI::ParseError& problem) {
  const auto& command = innermost(app);
  const std::string message = problem.what();
  const auto colon = message.find(": ");
  const auto name = message.substr(0, colon);
  if (is<CLI::ExtrasError>(problem) || is<CLI::RequiredError>(problem)) refuse_extra(command);
  if (is<CLI::RequiredError>(problem)) {
    std::vector<std::string> commands;
    for (const auto* one : command.get_subcommands(nullptr)) {
      if (!one->get_group().empty()) commands.push_back(one->get_name());
    }
    if (!commands.empty()) {
      fail(command,
           {.what = "no command", .expected = fmt::format("one of {}", fmt::join(commands, ", "))});
    }
    fail(command,
         {.what = without(message, " is required") + " is missing", .hint = see_help(command)});
  }
  if (is<CLI::ConversionError>(problem) && name == "Could not convert") {
    const auto rest = message.substr(colon + 2);
    refuse_value(command, rest.substr(0, rest.find(" = ")), message);
  }
  if (is<CLI::ValidationError>(problem) && !expected_by(message).empty()) {
    refuse_value(command, name, message);
  }
  if (is<CLI::ArgumentMismatch>(problem)) {
    const auto* option = command.get_option_no_throw(name);
    fail(command, {.what = name,
                   .got = "nothing after it",
                   .expected = option ? type_text(option->get_type_name()) : "a value",
                   .hint = option ? option->get_description() : see_help(command)});
  }
  fail(command, {.what = message, .hint = see_help(command)});
}

}  // namespace troika::cli
