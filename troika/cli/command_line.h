// Turns errors of the command line into the form that all errors of this program have.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace troika::cli {

// Throws Error(usage) for what CLI11 says of the command line of `app`.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& problem);

// Throws Error(usage), naming the nearest of the command's options and of `more`, for a word that
// looks like an option of this command and is none: `--name` or `--name=value` without a section.
// `known`: the option that is meant by it, where that is known.
void require_option(const CLI::App& command, const std::string& word,
                    const std::vector<std::string>& more = {}, const std::string& known = "");

}  // namespace troika::cli
