// Log lines on standard error and optionally in a file: `12:00:01.234 [rank 1] info: message`.
//
// Any thread may log, and may change the prefix and the files while other threads log. A program's
// results go to standard output instead.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>

namespace troika::log {

enum class Level { info, warn, error };

// Sets the prefix of all later lines, e.g. "rank 1". Empty: no prefix.
void set_prefix(const std::string& prefix);

// Also writes all later lines to this file, which is created or appended to. Throws Error if the
// file cannot be opened.
void also_to_file(const std::filesystem::path& path);

void write(Level level, const std::string& message);

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace troika::log
