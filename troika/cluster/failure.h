// A failing rank tells its launcher why in a small JSON file named by TROIKA_ERROR_FILE, so that
// the launcher can show the message of the rank that failed first.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

namespace troika::cluster {

struct FailureNote {
  std::string message;
  int64_t time_ns = 0;  // CLOCK_REALTIME
  int exit_code = 1;
};

// For the catch in main(): writes {"message" (the first line of what()), "time_ns", "exit_code"} to
// the file TROIKA_ERROR_FILE, whole or not at all; does nothing where that is not set. A file that
// cannot be written is only logged: the failure itself must stay the message.
void report_failure(const std::exception& failure) noexcept;

// Nothing where there is no such file or it holds something else.
std::optional<FailureNote> read_failure(const std::filesystem::path& file);

// CLOCK_REALTIME in nanoseconds: comparable between the processes of a machine.
int64_t realtime_ns();

}  // namespace troika::cluster
