// Converts errors of the command line into Troika's errors.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace troika::cli {

// Throws CLI11's error about the command line of `app` as Error(usage).
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& problem);

// Throws Error(usage) for a word that looks like an option of this command but is none: `--name` or
// `--name=value` without a section. The error names `known`, the intended option, or if that is
// empty the nearest of the command's options and of `more`.
void require_option(const CLI::App& command, const std::string& word,
                    const std::vector<std::string>& more = {}, const std::string& known = "");

}  // namespace troika::cli
