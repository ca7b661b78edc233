#include "troika/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <memory>

#include "troika/base/error.h"
#include "troika/base/file.h"

namespace troika::log {

namespace {

constexpr std::array kLevels{spdlog::level::info, spdlog::level::warn, spdlog::level::err};

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("troika",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->flush_on(spdlog::level::info);
    made->set_pattern("%H:%M:%S.%e %l: %v");
    return made;
  }();
  return *instance;
}

std::string prefix_pattern(const std::string& prefix) {
  return prefix.empty() ? "%H:%M:%S.%e %l: %v" : fmt::format("%H:%M:%S.%e [{}] %l: %v", prefix);
}

std::string& current_pattern() {
  static std::string pattern = prefix_pattern("");
  return pattern;
}

}  // namespace

void set_prefix(const std::string& prefix) {
  current_pattern() = prefix_pattern(prefix);
  logger().set_pattern(current_pattern());
}

void also_to_file(const std::filesystem::path& path) {
  if (path.has_parent_path()) make_folder(path.parent_path());
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    sink->set_pattern(current_pattern());
    logger().sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& problem) {
    throw Error("base", ErrorKind::usage, {.what = "cannot open log file", .got = problem.what()});
  }
}

void write(Level level, const std::string& message) {
  logger().log(kLevels[static_cast<size_t>(level)], message);
}

}  // namespace troika::log
