#include "troika/observe/loggers/jsonl.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/observe/loggers/resumed_lines.h"

namespace troika::observe {

namespace {

nlohmann::ordered_json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

std::optional<int64_t> step_of(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return {};
  return step->get<int64_t>();
}

const std::filesystem::path& begun(const std::filesystem::path& path,
                                   std::optional<LogPosition> resumed) {
  std::string content;
  if (resumed && std::filesystem::exists(path)) {
    for (const auto& line : resumed_lines(read_file(path), path, 1, *resumed, step_of)) {
      content += line + "\n";
    }
  }
  write_file_atomically(path, content);
  return path;
}

}  // namespace

JsonlLogger::JsonlLogger(const std::filesystem::path& path, std::optional<LogPosition> resumed)
    : file_(begun(path, resumed), O_WRONLY | O_APPEND) {}

void JsonlLogger::log(int64_t step, const MetricValues& values) {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json line = {{"step", step}, {"time", time.count()}};
  for (const auto& [name, value] : values) {
    if (name == "step" || name == "time") {
      throw Error("observe", ErrorKind::usage,
                  {.what = fmt::format("a metric cannot be a key of {}", file_.path().string()),
                   .got = fmt::format("name `{}`", name),
                   .expected = "a name other than `step` and `time`"});
    }
    line[name] = json_number(value);
  }
  // Bytes that are not UTF-8 in a name are replaced.
  file_.write(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void JsonlLogger::flush() {
  file_.sync();
}

}  // namespace troika::observe
