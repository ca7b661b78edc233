#include "troika/layout/summation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

constexpr int64_t kAlignment = 64;                    // bytes
constexpr int64_t kMostPartition = int64_t{1} << 30;  // as servers take

void require(bool holds, const char* what, const std::string& got, const char* expected) {
  if (holds) return;
  refuse(what, got, expected);
}

void require_rates(std::span<const double> rates) {
  for (const double rate : rates) {
    require(std::isfinite(rate) && rate > 0, "the bandwidth of a link", fmt::format("{}", rate),
            "a finite number of bytes per second above 0");
  }
}

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

std::vector<double> SummationSplit::shares() const {
  auto all = spares;
  all.insert(all.end(), workers.begin(), workers.end());
  return all;
}

SummationSplit split_sums(std::span<const double> workers, std::span<const double> spares) {
  require(!workers.empty(), "workers of summation servers", "0", "at least 1");
  require_rates(workers);
  require_rates(spares);
  const auto n = static_cast<double>(workers.size());
  SummationSplit split;
  if (workers.size() == 1) {
    split.workers = {1};
    split.spares.resize(spares.size(), 0);
    return split;
  }
  double time = 1 / std::ranges::min(workers);
  if (workers.size() > 2) {
    // The sum of (t B - 1) / (n - 2) over workers and of t B / n over spares is 1.
    const double speed = sum(workers) / (n - 2) + sum(spares) / n;
    time = std::max(time, (1 + n / (n - 2)) / speed);
  }
  split.seconds_per_byte = time;
  for (const double rate : spares) split.spares.push_back(time * rate / n);
  if (workers.size() == 2) {
    const double rest = std::max(0.0, 1 - sum(split.spares));
    split.workers.resize(2, rest / 2);
  } else {
    // Rounding may give -1e-17 where a link has no time left.
    for (const double rate : workers) {
      split.workers.push_back(std::max(0.0, (time * rate - 1) / (n - 2)));
    }
  }
  const double all = sum(split.spares) + sum(split.workers);
  for (auto& part : split.spares) part /= all;
  for (auto& part : split.workers) part /= all;
  return split;
}

SummationSplit split_sums(int workers, int spares) {
  require(workers > 0 && spares >= 0, "workers and spare machines of summation servers",
          fmt::format("{} and {}", workers, spares), "at least 1 and at least 0");
  return split_sums(std::vector<double>(static_cast<size_t>(workers), 1),
                    std::vector<double>(static_cast<size_t>(spares), 1));
}

SummationSplit split_by_links(std::span<const double> links, int64_t spares) {
  const auto first = static_cast<size_t>(spares);
  return split_sums(links.subspan(first), links.first(first));
}

std::vector<double> read_links(const std::string& text, int workers, int64_t spares) {
  const auto count = static_cast<size_t>(workers + spares);
  if (text.empty()) return std::vector<double>(count, 1);
  std::vector<double> rates;
  bool are_numbers = true;
  for (const auto& word : split(text, ',')) {
    const auto rate = parse_double(trim(word));
    are_numbers = are_numbers && rate;
    rates.push_back(rate.value_or(0));
  }
  if (are_numbers && rates.size() == count) return rates;
  refuse("bandwidths of links", "`" + text + "`",
         fmt::format("{} numbers with commas: of {} spare machines, then of {} workers; or {}",
                     count, spares, workers, kMeasuredBandwidths));
}

double local_sum_share(const SummationExchange& sums, std::string_view precision) {
  const bool is_half = sums.local_sums == "fp16" || sums.local_sums == "bf16";
  const bool is_double = precision == "64" || precision == "64-true";
  return !is_half ? 1 : is_double ? 0.25 : 0.5;
}

std::vector<Partition> partition_sums(std::span<const int64_t> bucket_bytes,
                                      int64_t partition_bytes, std::span<const double> shares) {
  require(partition_bytes >= kAlignment && partition_bytes <= kMostPartition,
          "the size of a partition", fmt::format("{} bytes", partition_bytes), "from 64 to 2^30");
  const double all_shares = sum(shares);
  require(!shares.empty() && std::isfinite(all_shares) && all_shares > 0 &&
              std::ranges::all_of(shares, [](double share) { return share >= 0; }),
          "the shares of summation servers", fmt::format("a sum of {}", all_shares),
          "numbers from 0, whose sum is above 0");
  const int64_t most = partition_bytes / kAlignment * kAlignment;
  std::vector<Partition> partitions;
  int64_t total = 0;
  for (size_t bucket = 0; bucket < bucket_bytes.size(); ++bucket) {
    const int64_t bytes = bucket_bytes[bucket];
    require(bytes >= 0, "the size of a bucket", fmt::format("{} bytes", bytes), "at least 0");
    if (bytes == 0) continue;
    // Equal pieces, as a last small one would take as long as the message of a larger one.
    const int64_t count = (bytes + most - 1) / most;
    const int64_t piece = ((bytes + count - 1) / count + kAlignment - 1) / kAlignment * kAlignment;
    for (int64_t offset = 0; offset < bytes; offset += piece) {
      partitions.push_back(
          {.bucket = bucket, .offset = offset, .bytes = std::min(piece, bytes - offset)});
    }
    total += bytes;
  }
  // Each partition goes to the server that lacks most. A server that gets one lacks something then,
  // so it never has a whole partition too much; if one lacked a whole partition in the end, the
  // others would have been given theirs while they lacked less. That holds for any order. This one,
  // of a golden-ratio sequence, spreads a server's partitions over the buckets.
  std::vector<size_t> order(partitions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [](size_t i) { return static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15; };
  std::ranges::sort(order, {}, place);
  std::vector<double> lacking;
  for (const double share : shares) {
    lacking.push_back(share / all_shares * static_cast<double>(total));
  }
  for (const size_t i : order) {
    const auto most_lacking = std::ranges::max_element(lacking);
    partitions[i].server = static_cast<size_t>(most_lacking - lacking.begin());
    *most_lacking -= static_cast<double>(partitions[i].bytes);
  }
  return partitions;
}

}  // namespace troika::layout
