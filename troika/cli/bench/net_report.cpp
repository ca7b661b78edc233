#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "troika/base/text.h"
#include "troika/cli/bench/net.h"
#include "troika/cli/bench/report.h"
#include "troika/cli/bench/words.h"
#include "troika/net/hello.h"

namespace troika::cli::bench {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NetRow, operation, carrier, protection, streams, bytes,
                                   iterations, min_microseconds, p50_microseconds, p99_microseconds,
                                   low_microseconds, high_microseconds, cpu_microseconds, bandwidth,
                                   times_bare)

namespace {

constexpr std::array kNetOperations{std::pair("round_trip", NetOperation::round_trip),
                                    std::pair("exchange", NetOperation::exchange),
                                    std::pair("messages", NetOperation::messages),
                                    std::pair("death", NetOperation::death)};
constexpr const char* kFormat =
    "{:<10}  {:<7}  {:<13}  {:>7}  {:>9}  {:>7}  {:>10}  {:>10}  {:>10}  {:>9}  {:>7}  {:>6}\n";

NetOperation net_operation_from(const std::string& word) {
  std::vector<std::string> names;
  for (const auto& [name, operation] : kNetOperations) {
    if (name == word) return operation;
    names.emplace_back(name);
  }
  refuse_name("operation", word, names);
}

int streams_from(const std::string& word) {
  const auto streams = parse_int(word);
  if (!streams || *streams < 1 || *streams > net::kMostStreams) {
    refuse("number of streams", word, fmt::format("an integer from 1 to {}", net::kMostStreams));
  }
  return static_cast<int>(*streams);
}

}  // namespace

NetPlan make_net_plan(const NetWords& words) {
  NetPlan plan;
  plan.operations = each(words.operations, net_operation_from);
  plan.sizes = each(words.sizes, bytes_from);
  const auto streams = each(words.streams, streams_from);
  const auto protections = each(words.protections, net::protection_from);
  for (const int count : streams) {
    plan.variants.push_back({Carrier::bare, net::Protection::none, count});
    for (const auto protection : protections) {
      plan.variants.push_back({Carrier::message, protection, count});
    }
  }
  for (const auto protection : protections) {
    plan.variants.push_back({Carrier::request, protection, streams.front()});
  }
  plan.min_seconds = seconds_from(words.min_time);
  return plan;
}

std::string to_table(const std::vector<NetRow>& rows) {
  std::string table =
      fmt::format(kFormat, "operation", "carrier", "protection", "streams", "size", "calls",
                  "min [us]", "p50 [us]", "p99 [us]", "cpu [us]", "GB/s", "x bare");
  for (const NetRow& row : rows) {
    table += fmt::format(
        kFormat, row.operation, row.carrier, row.protection, row.streams,
        row.bytes > 0 ? human_bytes(static_cast<double>(row.bytes)) : "-", row.iterations,
        fmt::format("{:.2f}", row.min_microseconds), fmt::format("{:.2f}", row.p50_microseconds),
        fmt::format("{:.2f}", row.p99_microseconds), fmt::format("{:.2f}", row.cpu_microseconds),
        row.bandwidth > 0 ? fmt::format("{:.3f}", row.bandwidth) : "-",
        row.times_bare > 0 ? fmt::format("{:.2f}", row.times_bare) : "-");
  }
  return table;
}

std::string to_record(const std::vector<NetRow>& rows) {
  auto record = make_record("net");
  for (const NetRow& row : rows) {
    record.add(fmt::format("{} {} {} {} streams {} B", row.operation, row.carrier, row.protection,
                           row.streams, row.bytes),
               "us", Better::lower,
               {row.p50_microseconds, row.low_microseconds, row.high_microseconds, row.iterations},
               row);
  }
  return record.to_json();
}

}  // namespace troika::cli::bench
