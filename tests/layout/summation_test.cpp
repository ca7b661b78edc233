#include "troika/layout/summation.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/support/errors.h"

namespace troika::layout {
namespace {

// Seconds until the slowest link has carried what it must each way, for one byte of gradients.
double time_of(const std::vector<double>& workers, const std::vector<double>& spares,
               const std::vector<double>& of_workers, const std::vector<double>& of_spares) {
  const auto n = static_cast<double>(workers.size());
  double time = 0;
  for (size_t i = 0; i < workers.size(); ++i) {
    time = std::max(time, ((1 - of_workers[i]) + (n - 1) * of_workers[i]) / workers[i]);
  }
  for (size_t i = 0; i < spares.size(); ++i) time = std::max(time, n * of_spares[i] / spares[i]);
  return time;
}

TEST(Summation, SplitIsThatOfThePaper) {
  for (int n = 2; n <= 6; ++n) {
    for (int k = 0; k <= n; ++k) {
      SCOPED_TRACE(fmt::format("{} workers, {} spares", n, k));
      const auto split = split_sums(n, k);
      const double d = n * n + k * n - 2 * k;
      ASSERT_EQ(split.workers.size(), static_cast<size_t>(n));
      ASSERT_EQ(split.spares.size(), static_cast<size_t>(k));
      for (const double part : split.workers) EXPECT_NEAR(part, (n - k) / d, 1e-12);
      for (const double part : split.spares) EXPECT_NEAR(part, 2 * (n - 1) / d, 1e-12);
      EXPECT_NEAR(split.seconds_per_byte, 2 * n * (n - 1) / d, 1e-12);
    }
    EXPECT_NEAR(split_sums(n, 0).seconds_per_byte, 2.0 * (n - 1) / n, 1e-12) << "an all-reduce's";
    EXPECT_NEAR(split_sums(n, n).seconds_per_byte, 1, 1e-12) << "each gradient crosses a link once";
    // More spares than workers cannot help: each worker's gradients cross its own link.
    const auto many = split_sums(n, n + 3);
    EXPECT_NEAR(many.seconds_per_byte, 1, 1e-12);
    for (const double part : many.spares) EXPECT_NEAR(part, 1.0 / (n + 3), 1e-12);
  }
  const auto alone = split_sums(1, 2);
  EXPECT_EQ(alone.seconds_per_byte, 0);
  EXPECT_EQ(alone.shares(), (std::vector<double>{0, 0, 1}));
}

// Tries all splits into steps of 1 / 24.
TEST(Summation, SplitOfUnequalLinksIsTheBestOne) {
  constexpr int kSteps = 24;
  const std::vector<std::pair<std::vector<double>, std::vector<double>>> links{
      {{1, 1, 4}, {}},     {{4, 3, 2}, {1}},       {{2, 2, 2}, {5}},       {{5, 5, 1}, {1, 3}},
      {{1, 3}, {2}},       {{3, 2}, {0.5, 0.25}},  {{2, 3, 4, 5}, {}},     {{1, 1, 1, 9}, {2}},
      {{8, 8, 8, 1}, {1}}, {{100, 100, 100}, {1}}, {{1, 1, 1}, {0.1, 10}},
  };
  for (const auto& [workers, spares] : links) {
    SCOPED_TRACE(fmt::format("first worker's link {}, {} spares", workers[0], spares.size()));
    const auto split = split_sums(workers, spares);
    const auto shares = split.shares();
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-12);
    EXPECT_GE(std::ranges::min(shares), 0);
    EXPECT_NEAR(time_of(workers, spares, split.workers, split.spares), split.seconds_per_byte,
                1e-12);
    double best = 1e9;
    std::vector<double> tried(workers.size() + spares.size());
    const std::function<void(size_t, int)> go_on = [&](size_t i, int left) {
      if (i + 1 < tried.size()) {
        for (int steps = 0; steps <= left; ++steps) {
          tried[i] = static_cast<double>(steps) / kSteps;
          go_on(i + 1, left - steps);
        }
        return;
      }
      tried[i] = static_cast<double>(left) / kSteps;
      const auto middle = tried.begin() + static_cast<ptrdiff_t>(workers.size());
      best =
          std::min(best, time_of(workers, spares, {tried.begin(), middle}, {middle, tried.end()}));
    };
    go_on(0, kSteps);
    EXPECT_LE(split.seconds_per_byte, best + 1e-12);
    // A split that is rounded to steps is at most this much slower.
    const double coarse =
        static_cast<double>(workers.size()) * tried.size() / kSteps /
        std::min(std::ranges::min(workers), spares.empty() ? 1e9 : std::ranges::min(spares));
    EXPECT_GE(split.seconds_per_byte, best - coarse);
  }
}

TEST(Summation, PartitionsMeetTheShares) {
  const std::vector<int64_t> buckets{4, 1 << 20, 0, 70'000, 300'004, 8};
  constexpr int64_t kMost = 10'000;
  int64_t total = 0;
  for (const int64_t bytes : buckets) total += bytes;
  for (int n = 2; n <= 6; ++n) {
    for (int k = 0; k <= n; ++k) {
      SCOPED_TRACE(fmt::format("{} workers, {} spares", n, k));
      const auto shares = split_sums(n, k).shares();
      const auto partitions = partition_sums(buckets, kMost, shares);
      EXPECT_EQ(partitions, partition_sums(buckets, kMost, shares));
      std::vector<double> bytes(shares.size());
      std::vector<int64_t> ends(buckets.size());
      size_t repeats = 0;
      for (size_t i = 0; i < partitions.size(); ++i) {
        const auto& partition = partitions[i];
        EXPECT_TRUE(partition.bytes > 0 && partition.bytes <= kMost);
        EXPECT_EQ(partition.offset % 64, 0);
        EXPECT_EQ(partition.offset, ends[partition.bucket]) << "no gaps";
        ends[partition.bucket] += partition.bytes;
        bytes[partition.server] += static_cast<double>(partition.bytes);
        repeats += i > 0 && partitions[i - 1].server == partition.server;
      }
      EXPECT_EQ(ends, buckets);
      for (size_t s = 0; s < shares.size(); ++s) {
        EXPECT_NEAR(bytes[s], shares[s] * static_cast<double>(total), kMost) << "server " << s;
      }
      EXPECT_LT(repeats, partitions.size() / 2) << "a server's partitions are spread";
    }
  }
}

TEST(Summation, RefusesWhatCannotBeSplit) {
  EXPECT_ERROR(split_sums(0, 1), ErrorKind::usage,
               "[layout] workers and spare machines of summation servers; got 0 and 1, expected "
               "at least 1 and at least 0");
  EXPECT_ERROR(split_sums(std::vector<double>{1, 0}, std::vector<double>{}), ErrorKind::usage,
               "[layout] the bandwidth of a link; got 0, expected a finite number of bytes per "
               "second above 0");
  const std::vector<int64_t> buckets{100};
  EXPECT_ERROR(partition_sums(buckets, 63, std::vector<double>{1}), ErrorKind::usage,
               "[layout] the size of a partition; got 63 bytes, expected from 64 to 2^30");
  EXPECT_ERROR(partition_sums(buckets, 64, std::vector<double>{}), ErrorKind::usage,
               "[layout] the shares of summation servers; got a sum of 0, expected numbers from 0, "
               "whose sum is above 0");
}

}  // namespace
}  // namespace troika::layout
