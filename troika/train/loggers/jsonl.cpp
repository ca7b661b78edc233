#include "troika/train/loggers/jsonl.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::train {

namespace {

nlohmann::ordered_json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

// A last line without its end was cut by a kill.
std::string lines_up_to(int64_t last_step, const std::filesystem::path& path) {
  auto lines = split(read_file(path), '\n');
  lines.pop_back();
  std::string kept;
  for (const auto& line : lines) {
    if (nlohmann::json::parse(line).at("step") <= last_step) kept += line + "\n";
  }
  return kept;
}

const std::filesystem::path& begun(const std::filesystem::path& path,
                                   std::optional<int64_t> resumed_step) {
  const bool resumes = resumed_step && std::filesystem::exists(path);
  write_file_atomically(path, resumes ? lines_up_to(*resumed_step, path) : "");
  return path;
}

}  // namespace

JsonlLogger::JsonlLogger(const std::filesystem::path& path, std::optional<int64_t> resumed_step)
    : file_(begun(path, resumed_step), O_WRONLY | O_APPEND) {}

void JsonlLogger::log(int64_t step, const MetricValues& values) {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json line = {{"step", step}, {"time", time.count()}};
  for (const auto& [name, value] : values) {
    if (name == "step" || name == "time") {
      throw Error("train", ErrorKind::usage,
                  {.what = fmt::format("a metric cannot be a key of {}", file_.path().string()),
                   .got = fmt::format("name `{}`", name),
                   .expected = "a name other than `step` and `time`"});
    }
    line[name] = json_number(value);
  }
  // Bytes of a name that are not UTF-8 are replaced.
  file_.write(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void JsonlLogger::flush() {
  file_.sync();
}

}  // namespace troika::train
