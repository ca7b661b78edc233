#include "troika/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <memory>
#include <mutex>

#include "troika/base/error.h"
#include "troika/base/file.h"

namespace troika::log {

namespace {

constexpr std::array kLevels{spdlog::level::info, spdlog::level::warn, spdlog::level::err};

std::string prefix_pattern(const std::string& prefix) {
  return prefix.empty() ? "%H:%M:%S.%e %l: %v" : fmt::format("%H:%M:%S.%e [{}] %l: %v", prefix);
}

// The destinations of all messages. Other threads may log while they change.
struct Output {
  Output() {
    sinks->add_sink(std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger.flush_on(spdlog::level::info);
    sinks->set_pattern(pattern);
  }

  std::shared_ptr<spdlog::sinks::dist_sink_mt> sinks =
      std::make_shared<spdlog::sinks::dist_sink_mt>();
  spdlog::logger logger{"troika", sinks};
  std::mutex mutex;  // guards pattern
  std::string pattern = prefix_pattern("");
};

Output& output() {
  // Never destroyed, because threads may log while the process ends.
  static auto* const instance = new Output;
  return *instance;
}

}  // namespace

void set_prefix(const std::string& prefix) {
  const std::lock_guard lock(output().mutex);
  output().pattern = prefix_pattern(prefix);
  output().sinks->set_pattern(output().pattern);
}

void also_to_file(const std::filesystem::path& path) {
  if (path.has_parent_path()) make_folder(path.parent_path());
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    const std::lock_guard lock(output().mutex);
    sink->set_pattern(output().pattern);
    output().sinks->add_sink(std::move(sink));
  } catch (const spdlog::spdlog_ex& problem) {
    throw Error("base", ErrorKind::usage, {.what = "cannot open log file", .got = problem.what()});
  }
}

void write(Level level, const std::string& message) {
  output().logger.log(kLevels[static_cast<size_t>(level)], message);
}

}  // namespace troika::log
