// A failing rank writes its error to the JSON file named by TROIKA_ERROR_FILE. The launcher shows
// the message of the rank that failed first.
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

// Call in the catch of main(). Atomically writes {"message" (the first line of what()), "time_ns",
// "exit_code"} to the file TROIKA_ERROR_FILE; does nothing if the variable is not set. If the file
// cannot be written, only logs a warning, so that the original failure remains the error.
void report_failure(const std::exception& failure) noexcept;

// Returns nullopt if the file is missing or invalid.
std::optional<FailureNote> read_failure(const std::filesystem::path& file);

// CLOCK_REALTIME in nanoseconds; comparable between processes of one machine.
int64_t realtime_ns();

}  // namespace troika::cluster
