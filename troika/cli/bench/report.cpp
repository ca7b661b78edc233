#include "troika/cli/bench/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/observe/summary.h"

namespace troika::cli::bench {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Row, operation, backend, algorithm, buffers, dtype, ranks, bytes,
                                   iterations, min_microseconds, p50_microseconds, p99_microseconds,
                                   low_microseconds, high_microseconds, algorithm_bandwidth,
                                   bus_bandwidth, is_reference, library)

namespace {

constexpr std::array kTitles{"operation", "back end", "algorithm", "buffers",
                             "ranks",     "size",     "calls",     "min [us]",
                             "p50 [us]",  "p99 [us]", "alg GB/s",  "bus GB/s"};
constexpr size_t kWords = 4;  // the leading text columns
using Line = std::array<std::string, kTitles.size()>;
// The lengths of the longest names; longer numbers only shift their own line.
constexpr std::array<int, kTitles.size()> kWidths{14, 19, 18, 8, 5, 10, 7, 12, 12, 12, 8, 8};

Line cells(const Row& row) {
  const auto time = [](double microseconds) { return fmt::format("{:.2f}", microseconds); };
  const auto rate = [](double bandwidth) { return fmt::format("{:.3f}", bandwidth); };
  return {row.operation,
          row.backend,
          row.algorithm,
          row.buffers,
          std::to_string(row.ranks),
          human_bytes(static_cast<double>(row.bytes)),
          std::to_string(row.iterations),
          time(row.min_microseconds),
          time(row.p50_microseconds),
          time(row.p99_microseconds),
          rate(row.algorithm_bandwidth),
          rate(row.bus_bandwidth)};
}

std::string aligned(const Line& line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (i > 0) text += "  ";
    text += i < kWords ? fmt::format("{:<{}}", line[i], kWidths[i])
                       : fmt::format("{:>{}}", line[i], kWidths[i]);
  }
  return text + '\n';
}

// For example "shm (auto, shared): 3.1 x gloo (c10d), 0.8 x limit".
std::string ratio(const Row& row, const std::vector<const Row*>& references) {
  std::vector<std::string> parts;
  for (const Row* reference : references) {
    parts.push_back(fmt::format("{:.3g} x {}", reference->p50_microseconds / row.p50_microseconds,
                                reference->backend));
  }
  return fmt::format("{} ({}, {}): {}", row.backend, row.algorithm, row.buffers,
                     fmt::join(parts, ", "));
}

}  // namespace

double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

double bus_factor(comm::Operation operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (operation) {
    case comm::Operation::all_reduce:
      return 2 * others;
    case comm::Operation::reduce_scatter:
    case comm::Operation::all_gather:
      return others;
    default:
      return 1;
  }
}

void set_times(Row& row, comm::Operation operation, std::vector<double> seconds) {
  TROIKA_CHECK(!seconds.empty(), "a measurement has calls");
  std::ranges::sort(seconds);
  row.iterations = static_cast<int64_t>(seconds.size());
  row.min_microseconds = 1e6 * seconds.front();
  row.p50_microseconds = 1e6 * percentile(seconds, 0.5);
  row.p99_microseconds = 1e6 * percentile(seconds, 0.99);
  const Spread spread = spread_of(seconds);
  row.low_microseconds = 1e6 * spread.low;
  row.high_microseconds = 1e6 * spread.high;
  row.algorithm_bandwidth = static_cast<double>(row.bytes) / (1e3 * row.p50_microseconds);
  row.bus_bandwidth = bus_factor(operation, row.ranks) * row.algorithm_bandwidth;
}

std::string titles() {
  Line line;
  std::ranges::copy(kTitles, line.begin());
  return aligned(line);
}

std::string to_line(const Row& row) {
  return aligned(cells(row));
}

std::string to_ratios(const std::vector<Row>& rows) {
  std::vector<std::pair<int, int64_t>> cases;
  for (const Row& row : rows) {
    const std::pair found(row.ranks, row.bytes);
    if (std::ranges::find(cases, found) == cases.end()) cases.push_back(found);
  }
  std::string text;
  for (const auto& [ranks, bytes] : cases) {
    std::vector<const Row*> references;
    for (const Row& row : rows) {
      if (row.ranks == ranks && row.bytes == bytes && row.is_reference) references.push_back(&row);
    }
    std::vector<std::string> parts;
    for (const Row& row : rows) {
      const bool is_default = row.backend == "shm" || row.backend == "tcp";
      const bool wanted = row.ranks == ranks && row.bytes == bytes && is_default;
      if (wanted && !references.empty()) parts.push_back(ratio(row, references));
    }
    if (parts.empty()) continue;
    text += fmt::format("{} ranks, {}: {}\n", ranks, human_bytes(static_cast<double>(bytes)),
                        fmt::join(parts, "; "));
  }
  return text;
}

std::string to_text(const std::vector<Row>& rows) {
  return nlohmann::json(rows).dump();
}

std::vector<Row> from_text(const std::string& text) {
  return nlohmann::json::parse(text).get<std::vector<Row>>();
}

BenchmarkRecord make_record(const std::string& name) {
  return {name, {{"troika", observe::troika_version()}, {"libtorch", compat::torch_version()}}};
}

std::string to_record(const std::vector<Row>& rows) {
  auto record = make_record("collectives");
  for (const Row& row : rows) {
    record.add(fmt::format("{} {} {} {} {} {} ranks {} B", row.operation, row.backend,
                           row.algorithm, row.buffers, row.dtype, row.ranks, row.bytes),
               "us", Better::lower,
               {row.p50_microseconds, row.low_microseconds, row.high_microseconds, row.iterations},
               row);
  }
  return record.to_json();
}

}  // namespace troika::cli::bench
