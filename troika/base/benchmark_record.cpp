#include "troika/base/benchmark_record.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"

namespace troika {

namespace {

constexpr size_t kFewestForBounds = 6;
constexpr double kNormal95 = 1.96;

std::string kernel() {
  utsname system{};
  return ::uname(&system) == 0 ? system.release : "unknown";
}

// The arguments of this process. The file terminates each with a zero byte.
std::vector<std::string> command_line() {
  auto words = split(read_file("/proc/self/cmdline"), '\0');
  if (!words.empty() && words.back().empty()) words.pop_back();
  return words;
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  TROIKA_CHECK(!samples.empty(), "a measurement has samples");
  std::ranges::sort(samples);
  const size_t count = samples.size();
  const double median = (samples[(count - 1) / 2] + samples[count / 2]) / 2;
  size_t below = 0;
  if (count >= kFewestForBounds) {
    const auto n = static_cast<double>(count);
    below = static_cast<size_t>(std::max(0.0, std::floor((n - kNormal95 * std::sqrt(n)) / 2)));
  }
  return {median, samples[below], samples[count - 1 - below], static_cast<int64_t>(count)};
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  std::map<std::string, std::string> first;  // values of the first processor
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const auto value = line.find_first_not_of(" \t", colon + 1);
    if (value != std::string::npos) first[name] = line.substr(value);
  }
  if (!first.contains("model name")) return "unknown";
  return fmt::format("{} (family {}, model {})", first["model name"], first["cpu family"],
                     first["model"]);
}

BenchmarkRecord::BenchmarkRecord(std::string name, std::map<std::string, std::string> versions)
    : name_(std::move(name)), versions_(std::move(versions)) {}

void BenchmarkRecord::add(std::string what, std::string unit, Better better, const Spread& spread,
                          const nlohmann::json& details) {
  rows_.push_back({std::move(what), std::move(unit), better, spread, details.dump()});
}

void BenchmarkRecord::add(std::string what, std::string unit, Better better,
                          std::vector<double> samples) {
  add(std::move(what), std::move(unit), better, spread_of(std::move(samples)),
      nlohmann::json::object());
}

std::string BenchmarkRecord::to_json() const {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Row& row : rows_) {
    rows.push_back({{"name", row.what},
                    {"unit", row.unit},
                    {"better", row.better == Better::lower ? "lower" : "higher"},
                    {"median", row.spread.median},
                    {"low", row.spread.low},
                    {"high", row.spread.high},
                    {"samples", row.spread.samples},
                    {"details", nlohmann::ordered_json::parse(row.details)}});
  }
  const nlohmann::ordered_json record{
      {"benchmark", name_},
      {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
      {"machine",
       {{"cpu", cpu_model()},
        {"cores", std::thread::hardware_concurrency()},
        {"kernel", kernel()}}},
      {"versions", versions_},
      {"command", command_line()},
      {"rows", rows}};
  return record.dump(2) + '\n';
}

}  // namespace troika
