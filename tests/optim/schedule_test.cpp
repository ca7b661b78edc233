#include "troika/optim/schedule.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"

namespace troika::optim {
namespace {

TEST(Schedule, ConstantStaysAtTheBaseRate) {
  const auto factor = make_schedule({.name = "constant"}, 10);
  for (const int64_t step : {0, 5, 9, 100}) EXPECT_EQ(factor(step), 1.0) << step;
}

TEST(Schedule, WarmUpRisesByEqualStepsToTheBaseRate) {
  for (const char* name : {"constant", "cosine"}) {
    const auto factor = make_schedule({.name = name, .warmup_steps = 4}, 20);
    EXPECT_DOUBLE_EQ(factor(0), 0.25) << name;
    EXPECT_DOUBLE_EQ(factor(1), 0.5) << name;
    EXPECT_DOUBLE_EQ(factor(3), 1.0) << name;
    EXPECT_DOUBLE_EQ(factor(4), 1.0) << name;
  }
}

TEST(Schedule, CosineFallsFromTheBaseRateToItsFinalFactor) {
  const auto factor = make_schedule({.name = "cosine"}, 100);
  EXPECT_DOUBLE_EQ(factor(0), 1.0);
  EXPECT_NEAR(factor(25), 0.5 + std::sqrt(0.5) / 2, 1e-15);
  EXPECT_NEAR(factor(50), 0.5, 1e-15);
  EXPECT_NEAR(factor(100), 0.0, 1e-15);

  const auto floored = make_schedule({.name = "cosine", .final_factor = 0.2}, 100);
  EXPECT_DOUBLE_EQ(floored(0), 1.0);
  EXPECT_NEAR(floored(50), 0.6, 1e-15);
  EXPECT_NEAR(floored(100), 0.2, 1e-15);
  EXPECT_NEAR(floored(1000), 0.2, 1e-15) << "past the end it does not rise again";
}

TEST(Schedule, CosineFallsOverWhatTheWarmUpLeaves) {
  const auto factor =
      make_schedule({.name = "cosine", .warmup_steps = 20, .final_factor = 0.1}, 120);
  EXPECT_DOUBLE_EQ(factor(19), 1.0);
  EXPECT_DOUBLE_EQ(factor(20), 1.0);
  EXPECT_NEAR(factor(70), 0.55, 1e-15);
  EXPECT_NEAR(factor(120), 0.1, 1e-15);
}

TEST(Schedule, AWarmUpLongerThanTheRunIsCutShort) {
  const auto factor = make_schedule({.name = "cosine", .warmup_steps = 10}, 5);
  EXPECT_DOUBLE_EQ(factor(4), 0.5);
  EXPECT_DOUBLE_EQ(factor(10), 1.0);
}

TEST(Schedule, RefusesAnUnknownName) {
  EXPECT_ERROR(make_schedule({.name = "cosin"}, 10), ErrorKind::usage,
               "[optim] unknown learning-rate schedule; got cosin (did you mean cosine?)");
}

}  // namespace
}  // namespace troika::optim
