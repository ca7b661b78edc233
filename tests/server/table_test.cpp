#include "troika/server/table.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/random.h"

namespace troika::server {
namespace {

TEST(ServerTable, HasATextForm) {
  const TableSpec spec{.name = "embedding",
                       .type = ValueType::float64,
                       .keys = 0,
                       .width = 16,
                       .initial = 0.5,
                       .spread = 0.1,
                       .seed = ~uint64_t{0},
                       .application = Application::per_step,
                       .update = {.kind = UpdateKind::adam, .scale = 0.25, .rate = 1e-3}};
  const std::string text =
      "embedding float64 keys=0 width=16 initial=0.5 spread=0.1 seed=18446744073709551615 per_step "
      "adam rate=0.001 beta1=0.9 beta2=0.999 epsilon=1e-08 scale=0.25";
  EXPECT_EQ(to_text(spec), text);
  EXPECT_EQ(parse_table(text), spec);
}

TEST(ServerTable, RefusesTextsThatDoNotParse) {
  EXPECT_ERROR(
      parse_table("w float32 keys=-1 width=1 initial=0 spread=0 seed=0 per_push sum"),
      ErrorKind::usage,
      "[server] a table's text does not parse: `w float32 keys=-1 width=1 initial=0 spread=0 "
      "seed=0 "
      "per_push sum`; got keys=-1, expected NAME float32|float64 keys=N width=N initial=X spread=X "
      "seed=N per_push|per_step UPDATE");
  EXPECT_THROW(parse_table("w float32"), Error);
  EXPECT_THROW(parse_table("w int8 keys=1 width=1 initial=0 spread=0 seed=0 per_push sum"), Error);
  EXPECT_THROW(
      parse_table(
          "w float32 keys=18446744073709551616 width=1 initial=0 spread=0 seed=0 per_push sum"),
      Error);
}

// Every key belongs to one range, and ranges of dense tables are runs of equal length.
TEST(ServerTable, RangesPartitionTheKeys) {
  for (const uint64_t keys : {1, 2, 7, 64, 1000}) {
    for (const uint32_t ranges : {1u, 3u, 64u}) {
      const TableSpec spec{.name = "w", .keys = keys};
      uint64_t next = 0;
      for (uint32_t range = 0; range < ranges; ++range) {
        const auto span = keys_of(spec, range, ranges);
        EXPECT_EQ(span.first, next);
        EXPECT_LE(span.count, keys / ranges + 1);
        for (uint64_t i = 0; i < span.count; ++i) {
          EXPECT_EQ(range_of(spec, span.first + i, ranges), range);
        }
        next += span.count;
      }
      EXPECT_EQ(next, keys);
    }
  }
  const TableSpec all{.name = "w", .keys = ~uint64_t{0}};
  EXPECT_EQ(range_of(all, ~uint64_t{0} - 1, 64), 63u);
}

TEST(ServerTable, SparseKeysSpreadOverTheRing) {
  const TableSpec spec{.name = "w"};
  std::vector<int> counts(10);
  for (Key key = 0; key < 10'000; ++key) ++counts[range_of(spec, key, 10)];
  EXPECT_THAT(counts, testing::Each(testing::AllOf(testing::Gt(850), testing::Lt(1150))));
}

TEST(ServerTable, InitialValuesAreAFunctionOfTheKey) {
  const TableSpec spec{.name = "w", .initial = 1, .spread = 0.5, .seed = 7};
  double least = 2, most = 0, sum = 0;
  for (Key key = 0; key < 10'000; ++key) {
    const double value = initial_value(spec, key, 3);
    EXPECT_EQ(value, initial_value(spec, key, 3));
    least = std::min(least, value);
    most = std::max(most, value);
    sum += value;
  }
  EXPECT_GE(least, 0.5);
  EXPECT_LT(least, 0.51);
  EXPECT_LT(most, 1.5);
  EXPECT_GT(most, 1.49);
  EXPECT_NEAR(sum / 10'000, 1, 0.01);
  EXPECT_NE(initial_value(spec, 1, 0), initial_value(spec, 1, 1));
}

}  // namespace
}  // namespace troika::server
