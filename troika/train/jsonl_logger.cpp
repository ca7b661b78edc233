#include "troika/train/jsonl_logger.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"

namespace troika::train {

namespace {

nlohmann::ordered_json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

std::filesystem::path in_a_folder(const std::filesystem::path& path) {
  make_folder(path.parent_path());
  return path;
}

}  // namespace

JsonlLogger::JsonlLogger(const std::filesystem::path& path)
    : file_(in_a_folder(path), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND) {}

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
