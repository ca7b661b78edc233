#include "troika/observe/loggers/tensorboard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>

#include "troika/base/checksum.h"

namespace troika::observe {

namespace {

constexpr char kSessionStart = 1;  // SessionLog.SessionStatus

// Fields of event.proto and summary.proto; a key is (number << 3) | wire type.
enum Key : char {
  kEventWallTime = (1 << 3) | 1,     // double
  kEventStep = (2 << 3) | 0,         // int64
  kEventFileVersion = (3 << 3) | 2,  // string
  kEventSummary = (5 << 3) | 2,      // Summary
  kEventSessionLog = (7 << 3) | 2,   // SessionLog
  kSessionStatus = (1 << 3) | 0,     // enum
  kSummaryValue = (1 << 3) | 2,      // repeated Summary.Value
  kValueTag = (1 << 3) | 2,          // string
  kValueSimple = (2 << 3) | 5,       // float
};

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes += static_cast<char>(value);
}

template <typename Number>
std::string little_endian(Number value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string length_delimited(Key key, std::string_view bytes) {
  return char{key} + varint(bytes.size()) + std::string(bytes);
}

std::string event(double wall_time, int64_t step, const std::string& content) {
  return char{kEventWallTime} + little_endian(wall_time) + char{kEventStep} +
         varint(static_cast<uint64_t>(step)) + content;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

// Returns the first free name, in case a run starts twice within a second.
std::filesystem::path free_path(const std::filesystem::path& folder, double time) {
  const auto first =
      folder / fmt::format("events.out.tfevents.{}.{}", static_cast<int64_t>(time), host_name());
  auto path = first;
  for (int i = 1; std::filesystem::exists(path); ++i)
    path = fmt::format("{}.{}", first.string(), i);
  return path;
}

}  // namespace

TensorBoardLogger::TensorBoardLogger(const std::filesystem::path& folder,
                                     std::optional<LogPosition> resumed) {
  make_folder(folder);
  const double time = now();
  file_ = std::make_unique<File>(free_path(folder, time), O_WRONLY | O_CREAT | O_EXCL);
  write_record(event(time, 0, length_delimited(kEventFileVersion, "brain.Event:2")));
  if (!resumed) return;
  const int64_t dropped = resumed->step + (resumed->rows > 0 ? 1 : 0);  // drops from here on
  const std::string start{kSessionStatus, kSessionStart};
  write_record(event(time, dropped, length_delimited(kEventSessionLog, start)));
}

void TensorBoardLogger::log(int64_t step, const MetricValues& values) {
  std::string summary;
  for (const auto& [name, value] : values) {
    summary +=
        length_delimited(kSummaryValue, length_delimited(kValueTag, name) + char{kValueSimple} +
                                            little_endian(static_cast<float>(value)));
  }
  write_record(event(now(), step, length_delimited(kEventSummary, summary)));
}

void TensorBoardLogger::flush() {
  file_->sync();
}

void TensorBoardLogger::write_record(std::string_view bytes) {
  const std::string length = little_endian(uint64_t{bytes.size()});
  file_->write(length + little_endian(masked_crc(crc32c(length))) + std::string(bytes) +
               little_endian(masked_crc(crc32c(bytes))));
}

}  // namespace troika::observe
