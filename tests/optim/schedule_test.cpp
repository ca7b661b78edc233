#include "troika/optim/schedule.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "troika/optim/plateau.h"

namespace troika::optim {
namespace {

TEST(Schedule, ConstantStaysAtTheBaseRate) {
  const auto factor = make_schedule({.name = "constant"}, {.steps = 10});
  for (const int64_t step : {0, 5, 9, 100}) EXPECT_EQ(factor(step), 1.0) << step;
}

TEST(Schedule, WarmUpRisesByEqualStepsToTheBaseRate) {
  for (const char* name : {"constant", "cosine"}) {
    const auto factor = make_schedule({.name = name, .warmup_steps = 4}, {.steps = 20});
    EXPECT_DOUBLE_EQ(factor(0), 0.25) << name;
    EXPECT_DOUBLE_EQ(factor(1), 0.5) << name;
    EXPECT_DOUBLE_EQ(factor(3), 1.0) << name;
    EXPECT_DOUBLE_EQ(factor(4), 1.0) << name;
  }
}

TEST(Schedule, CosineFallsFromTheBaseRateToItsFinalFactor) {
  const auto factor = make_schedule({.name = "cosine"}, {.steps = 100});
  EXPECT_DOUBLE_EQ(factor(0), 1.0);
  EXPECT_NEAR(factor(25), 0.5 + std::sqrt(0.5) / 2, 1e-15);
  EXPECT_NEAR(factor(50), 0.5, 1e-15);
  EXPECT_NEAR(factor(100), 0.0, 1e-15);

  const auto floored = make_schedule({.name = "cosine", .final_factor = 0.2}, {.steps = 100});
  EXPECT_DOUBLE_EQ(floored(0), 1.0);
  EXPECT_NEAR(floored(50), 0.6, 1e-15);
  EXPECT_NEAR(floored(100), 0.2, 1e-15);
  EXPECT_NEAR(floored(1000), 0.2, 1e-15) << "past the end it does not rise again";
}

TEST(Schedule, CosineFallsOverWhatTheWarmUpLeaves) {
  const auto factor =
      make_schedule({.name = "cosine", .warmup_steps = 20, .final_factor = 0.1}, {.steps = 120});
  EXPECT_DOUBLE_EQ(factor(19), 1.0);
  EXPECT_DOUBLE_EQ(factor(20), 1.0);
  EXPECT_NEAR(factor(70), 0.55, 1e-15);
  EXPECT_NEAR(factor(120), 0.1, 1e-15);
}

TEST(Schedule, AWarmUpLongerThanTheRunIsCutShort) {
  const auto factor = make_schedule({.name = "cosine", .warmup_steps = 10}, {.steps = 5});
  EXPECT_DOUBLE_EQ(factor(4), 0.5);
  EXPECT_DOUBLE_EQ(factor(10), 1.0);
}

TEST(Schedule, StepFallsEverySoManySteps) {
  const auto factor =
      make_schedule({.name = "step", .warmup_steps = 2, .gamma = 0.5, .step_size = 10}, {});
  EXPECT_EQ(factor(0), 0.5);
  EXPECT_EQ(factor(2), 1.0);
  EXPECT_EQ(factor(9), 1.0);
  EXPECT_EQ(factor(10), 0.5);
  EXPECT_EQ(factor(29), 0.25);
  EXPECT_EQ(factor(30), 0.125);
}

TEST(Schedule, MultiStepFallsAtItsMilestones) {
  const auto factor =
      make_schedule({.name = "multi_step", .gamma = 0.5, .milestones = {3, 7, 7}}, {});
  EXPECT_EQ(factor(2), 1.0);
  EXPECT_EQ(factor(3), 0.5);
  EXPECT_EQ(factor(6), 0.5);
  EXPECT_EQ(factor(7), 0.125);
  EXPECT_EQ(factor(100), 0.125);
}

TEST(Schedule, PolynomialFallsWithItsPower) {
  const ScheduleOptions options{
      .name = "polynomial", .warmup_steps = 20, .final_factor = 0.2, .power = 2};
  const auto factor = make_schedule(options, {.steps = 120});
  EXPECT_DOUBLE_EQ(factor(20), 1.0);
  EXPECT_NEAR(factor(70), 0.2 + 0.8 * 0.25, 1e-15);
  EXPECT_NEAR(factor(120), 0.2, 1e-15);
  EXPECT_NEAR(factor(500), 0.2, 1e-15);
}

// PyTorch's OneCycleLR(max_lr=1, total_steps=101, pct_start=0.3, div_factor=25): its top is at step
// 0.3 * 101 - 1, its end at step 100.
TEST(Schedule, OneCycleRisesAndFalls) {
  const auto factor = make_schedule({.name = "one_cycle", .final_factor = 1e-4}, {.steps = 101});
  const double top = 0.3 * 101 - 1;
  EXPECT_NEAR(factor(0), 0.04, 1e-15);
  EXPECT_NEAR(factor(10), 1 + (0.04 - 1) / 2 * (1 + std::cos(M_PI * 10 / top)), 1e-15);
  EXPECT_NEAR(factor(60), 1e-4 + (1 - 1e-4) / 2 * (1 + std::cos(M_PI * (60 - top) / (100 - top))),
              1e-15);
  EXPECT_NEAR(factor(100), 1e-4, 1e-15);
}

TEST(Schedule, AScaledRateIsWarmedUpFromTheOneGiven) {
  const RunLength run{.steps = 100, .global_batch = 8192};
  const auto linear = make_schedule(
      {.name = "constant", .warmup_steps = 10, .scaling = "linear", .reference_batch = 256}, run);
  EXPECT_DOUBLE_EQ(linear(0), 1 + 31 * 0.1);
  EXPECT_DOUBLE_EQ(linear(9), 32);
  EXPECT_DOUBLE_EQ(linear(10), 32);
  const auto root =
      make_schedule({.name = "constant", .scaling = "square_root", .reference_batch = 2048}, run);
  EXPECT_DOUBLE_EQ(root(0), 2);
  const auto smaller = make_schedule(
      {.name = "constant", .warmup_steps = 4, .scaling = "linear", .reference_batch = 16384}, run);
  EXPECT_DOUBLE_EQ(smaller(0), 0.5) << "the warm-up never starts above the rate it leads to";
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  EXPECT_ERROR(make_schedule({.name = "cosin"}, {.steps = 10}), ErrorKind::usage,
               "[optim] unknown learning-rate schedule; got cosin (did you mean cosine?)");
  EXPECT_ERROR(make_schedule({.scaling = "liner"}, {.steps = 10}), ErrorKind::usage,
               "[optim] unknown scaling of the learning rate; got liner (did you mean linear?)");
  EXPECT_ERROR(make_schedule({.name = "one_cycle", .warmup_steps = 3}, {.steps = 10}),
               ErrorKind::usage,
               "[optim] one_cycle has its own warm-up; got 3 warm-up steps, expected 0 "
               "(rise_fraction says how long it rises)");
  EXPECT_ERROR(make_schedule({.name = "multi_step"}, {.steps = 10}), ErrorKind::usage,
               "[optim] milestones of multi_step; got none, expected at least one step, in "
               "ascending order");
  EXPECT_ERROR(make_schedule({.name = "multi_step", .milestones = {5, 3}}, {.steps = 10}),
               ErrorKind::usage,
               "[optim] milestones of multi_step; got descending ones, expected at least one step, "
               "in ascending order");
  EXPECT_ERROR(make_schedule({.name = "step", .step_size = 0}, {.steps = 10}), ErrorKind::usage,
               "[optim] step_size; got 0, expected >= 1");
}

const ScheduleOptions kPlateau{
    .name = "plateau", .final_factor = 0.2, .gamma = 0.5, .patience = 1, .threshold = 0.1};

TEST(ReduceOnPlateau, FallsWhenPatienceIsSpent) {
  ReduceOnPlateau plateau(kPlateau);
  const auto after = [&](double value) {
    plateau.judge(value);
    return plateau.factor();
  };
  EXPECT_EQ(after(10), 1);
  EXPECT_EQ(after(9.5), 1) << "not by a tenth: the first in vain";
  EXPECT_EQ(after(8.9), 1) << "progress";
  EXPECT_EQ(after(NAN), 1);
  EXPECT_EQ(after(8.9), 0.5) << "the second in vain is one too many";
  EXPECT_EQ(after(8.9), 0.5) << "counted anew";
  EXPECT_EQ(after(8.9), 0.25);
  after(8.9);
  EXPECT_EQ(after(8.9), 0.2) << "not below final_factor";
}

TEST(ReduceOnPlateau, GoesOnFromItsState) {
  ReduceOnPlateau plateau(kPlateau), resumed(kPlateau);
  for (const double value : {4.0, 4.0, 4.0, 4.0}) plateau.judge(value);
  resumed.load_state(plateau.state());
  EXPECT_EQ(resumed.factor(), 0.5);
  resumed.judge(3.9);
  EXPECT_EQ(resumed.factor(), 0.25);
  EXPECT_ERROR(resumed.load_state(plateau.state().narrow(0, 0, 2)), ErrorKind::usage,
               "[optim] state of ReduceOnPlateau; got 2 numbers, expected 3");
}

}  // namespace
}  // namespace troika::optim
