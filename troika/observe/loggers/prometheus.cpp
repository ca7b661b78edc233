#include "troika/observe/loggers/prometheus.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/file.h"

namespace troika::observe {

namespace {

// Colons are allowed too, but are reserved for recording rules.
std::string gauge_name(const std::string& name) {
  std::string result = "troika_";
  for (const char c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    result += plain ? c : '_';
  }
  return result;
}

// Escapes a label's value; HELP text has the same escapes except for quotes.
std::string escaped(const std::string& text, bool quotes) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || (quotes && c == '"')) result += '\\';
    result += c == '\n' ? "\\n" : std::string(1, c);
  }
  return result;
}

std::string gauge_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

PrometheusLogger::PrometheusLogger(std::filesystem::path path, std::string run)
    : path_(std::move(path)), run_(std::move(run)) {}

void PrometheusLogger::set(const std::string& name, double value) {
  const auto [gauge, is_new] = gauges_.try_emplace(gauge_name(name), Gauge{name, value});
  if (gauge->second.name != name) {
    throw Error(
        "observe", ErrorKind::usage,
        {.what = fmt::format("two metrics have the name {} in {}", gauge->first, path_.string()),
         .got = fmt::format("`{}` and `{}`", gauge->second.name, name),
         .expected = "names that differ in letters, digits or underscores"});
  }
  gauge->second.value = value;
}

void PrometheusLogger::log(int64_t step, const MetricValues& values) {
  set("step", static_cast<double>(step));
  for (const auto& [name, value] : values) set(name, value);
  std::string text;
  for (const auto& [key, gauge] : gauges_) {
    text +=
        fmt::format("# HELP {0} Latest value of {1}.\n# TYPE {0} gauge\n{0}{{run=\"{2}\"}} {3}\n",
                    key, escaped(gauge.name, false), escaped(run_, true), gauge_value(gauge.value));
  }
  write_file_atomically(path_, text);
}

}  // namespace troika::observe
