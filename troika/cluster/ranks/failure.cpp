#include "troika/cluster/ranks/failure.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/rendezvous/wire.h"

namespace troika::cluster {

void report_failure(const std::exception& failure) noexcept {
  try {
    const auto file = process_variable("TROIKA_ERROR_FILE");
    if (!file || file->empty()) return;
    // Only the first line; further lines, e.g. the stack of a LibTorch error, belong in the log.
    const std::string text = failure.what();
    const nlohmann::json note = {{"message", text.substr(0, text.find('\n'))},
                                 {"time_ns", realtime_ns()},
                                 {"exit_code", exit_code(failure)}};
    write_file_atomically(*file, to_text(note) + "\n");
  } catch (const std::exception& problem) {
    log::warn("[cluster] the launcher cannot be told of the failure: {}", problem.what());
  }
}

std::optional<FailureNote> read_failure(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(read_file(file));
    return FailureNote{json.at("message"), json.at("time_ns"), json.value("exit_code", 1)};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

int64_t realtime_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace troika::cluster
