#include "troika/base/benchmark_record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

namespace troika {
namespace {

TEST(Spread, OfFewSamplesGoesFromTheLeastToTheGreatest) {
  const Spread spread = spread_of({5, 1, 4, 2});
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.low, 1);
  EXPECT_EQ(spread.high, 5);
  EXPECT_EQ(spread.samples, 4);
}

// The bounds of the binomial distribution for 25 samples are the 8th and the 18th: 95.7 %.
TEST(Spread, OfManySamplesHoldsTheMedianWith95PerCent) {
  std::vector<double> samples(25);
  std::iota(samples.rbegin(), samples.rend(), 1);
  const Spread spread = spread_of(samples);
  EXPECT_EQ(spread.median, 13);
  EXPECT_EQ(spread.low, 8);
  EXPECT_EQ(spread.high, 18);
}

TEST(BenchmarkRecord, SaysWhatWasMeasuredWhereAndHow) {
  BenchmarkRecord record("loader", {{"libtorch", "2.15"}});
  record.add("rate", "1/s", Better::higher, {1, 3, 2});
  record.add("time", "ms", Better::lower, {2, 1, 4, 9}, {{"batch", 128}});
  const auto json = nlohmann::json::parse(record.to_json());
  EXPECT_EQ(json["benchmark"], "loader");
  EXPECT_EQ(json["versions"]["libtorch"], "2.15");
  EXPECT_GT(json["machine"]["cores"], 0);
  EXPECT_EQ(json["machine"]["cpu"], cpu_model());
  EXPECT_TRUE(json["command"][0].get<std::string>().ends_with("test_base")) << json["command"];
  ASSERT_EQ(json["rows"].size(), 2U);
  const auto& rate = json["rows"][0];
  EXPECT_EQ(rate["name"], "rate");
  EXPECT_EQ(rate["better"], "higher");
  EXPECT_EQ(rate["median"], 2);
  EXPECT_EQ(rate["low"], 1);
  EXPECT_EQ(rate["high"], 3);
  EXPECT_EQ(rate["samples"], 3);
  EXPECT_EQ(json["rows"][1]["details"]["batch"], 128);
}

}  // namespace
}  // namespace troika
