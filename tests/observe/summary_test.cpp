// summary.json, and the medians in it.
#include <gmock/gmock.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/observe/summary.h"

namespace troika::observe {
namespace {

TEST(Summary, HasTheseKeysAndNullForWhatWasNotMeasured) {
  const TemporaryFolder folder;
  RunSummary summary{.name = "quick",
                     .status = "finished",
                     .world_size = 2,
                     .steps = 300,
                     .samples = 19200,
                     .epochs = 3,
                     .train_loss = 0.25,
                     .median_step_milliseconds = 12.5,
                     .phase_milliseconds = {{"forward", {2, 2.5}}},
                     .bubble = {0.25, 0.5},
                     .roofline = Roofline{.flops_per_second = 1e12,
                                          .bytes_per_second = NAN,
                                          .work = {{"forward", 2e9, 3e6, 1.5}}},
                     .peak_resident_bytes = {123, 456},
                     .peak_tensor_bytes = {78},
                     .predicted_tensor_bytes = {77, 78},
                     .torch_version = "1.13.0",
                     .run_folder = "runs/quick\xff"};
  write_summary(folder / "summary.json", summary);
  const std::string text = read_file(folder / "summary.json");
  EXPECT_EQ(text, R"({
  "name": "quick",
  "status": "finished",
  "world_size": 2,
  "steps": 300,
  "samples": 19200,
  "epochs": 3,
  "train_loss": 0.25,
  "validation_loss": null,
  "validation_accuracy": null,
  "samples_per_second": null,
  "median_step_milliseconds": 12.5,
  "phase_milliseconds": {
    "forward": [
      2.0,
      2.5
    ]
  },
  "bubble": [
    0.25,
    0.5
  ],
  "roofline": {
    "flops_per_second": 1000000000000.0,
    "bytes_per_second": null,
    "work": {
      "forward": {
        "flops": 2000000000.0,
        "bytes": 3000000.0,
        "bound_milliseconds": 1.5
      }
    }
  },
  "seconds": null,
  "peak_resident_bytes": [
    123,
    456
  ],
  "peak_tensor_bytes": [
    78
  ],
  "predicted_tensor_bytes": [
    77,
    78
  ],
  "torch_version": "1.13.0",
  "troika_version": ")" +
                      troika_version() +
                      "\",\n  \"run_folder\": \"runs/quick\xef\xbf\xbd\",\n"
                      "  \"checkpoint\": \"\",\n  \"best_checkpoint\": \"\",\n"
                      "  \"metrics\": {},\n  \"failure\": \"\"\n}\n");
  EXPECT_THAT(troika_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST(Summary, PeakMemoryGrowsWithUse) {
  const int64_t before = peak_resident_bytes();
  EXPECT_GT(before, 1 << 20);
  std::vector<char> block(static_cast<size_t>(before) + (64 << 20), 1);
  EXPECT_GE(peak_resident_bytes(), before + (64 << 20) / 2);
  EXPECT_EQ(std::accumulate(block.begin(), block.begin() + 3, 0), 3);
  block = {};
  EXPECT_GE(peak_resident_bytes(), before + (64 << 20) / 2) << "a peak stays";
}

TEST(Median, IsExact) {
  Median median;
  EXPECT_TRUE(std::isnan(median.value()));
  median.add(5);
  EXPECT_EQ(median.value(), 5);
  median.add(1);
  EXPECT_EQ(median.value(), 3);
  median.add(100);
  EXPECT_EQ(median.value(), 5);
  median.add(-1);
  EXPECT_EQ(median.value(), 3);
  EXPECT_THROW(median.add(NAN), CheckError);
}

// The numbers are evenly spaced on a logarithmic scale from 1e-3 to 1e3, in random order.
TEST(Median, OfManyIsWithinHalfAPercent) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponents(-3, 3);
  Median median;
  std::vector<double> values;
  for (int i = 0; i < 30'001; ++i) {
    values.push_back(std::pow(10, exponents(random)));
    median.add(values.back());
    if (values.size() % 5'000 != 1) continue;
    auto sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const double exact = sorted[sorted.size() / 2];
    EXPECT_NEAR(median.value(), exact, 0.00501 * exact) << values.size();
  }
  Median extreme;
  for (size_t i = 0; i < 2 * Median::kExact; ++i) extreme.add(i % 3 == 0 ? -1 : INFINITY);
  EXPECT_NEAR(extreme.value(), 1e9, 0.0101 * 1e9) << "as what is above counts";
}

TEST(Median, DoesNotGrow) {
  Median median;
  const auto in_use = [] { return static_cast<int64_t>(::mallinfo2().uordblks); };
  const int64_t before = in_use();
  for (int i = 0; i < 1'000'000; ++i) median.add(1 + i % 100);
  EXPECT_LE(in_use() - before, 40 << 10);
  EXPECT_NEAR(median.value(), 50.5, 0.0101 * 50.5);
}

}  // namespace
}  // namespace troika::observe
