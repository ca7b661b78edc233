// Log lines on standard error and, once asked, in a file: `12:00:01.234 [rank 1] info  message`.
//
// Safe to call from any thread. What a program prints as its result goes to standard output, not
// here.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>

namespace troika::log {

enum class Level { info, warn, error };

// Put in front of every line from now on, e.g. "rank 1"; empty for none.
void set_prefix(const std::string& prefix);

// Copies every further line to this file, which is created or appended to. Throws Error when the
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
