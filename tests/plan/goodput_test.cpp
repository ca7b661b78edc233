// Goodput of runs that fail, against closed forms.
#include "troika/plan/simulation/goodput.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"

namespace troika::plan {
namespace {

constexpr double kHour = 3600, kInfinite = std::numeric_limits<double>::infinity();

TEST(Goodput, IsTheClosedForm) {
  // A failure every hour, checkpoints every ten minutes.
  for (const double checkpoint : {0.0, 5.0, 60.0}) {
    for (const double restart : {0.0, 120.0, 900.0}) {
      for (const uint64_t seed : {1u, 2u}) {
        const FailureModel model{.mean_between_failures = kHour,
                                 .checkpoint_interval = 600,
                                 .checkpoint_seconds = checkpoint,
                                 .restart_seconds = restart,
                                 .seed = seed};
        const auto found = simulate_goodput(model, {0.4, 0.5, 0.6});
        const double expected =
            600 / (kHour * std::exp(restart / kHour) * (std::exp((600 + checkpoint) / kHour) - 1));
        EXPECT_NEAR(*found.expected_share, expected, expected * 1e-3);
        EXPECT_NEAR(found.share, expected, expected * 0.01);
        EXPECT_NEAR(found.share + found.checkpoint_share + found.lost_share + found.restart_share,
                    1, 1e-9);
        EXPECT_NEAR(found.simulated_seconds / static_cast<double>(found.failures), kHour, 100);
        EXPECT_EQ(found.steps_between_checkpoints, 1200);
      }
    }
  }
}

TEST(Goodput, WithoutFailuresLosesCheckpoints) {
  const auto found = simulate_goodput(
      {.mean_between_failures = kInfinite, .checkpoint_interval = 95, .checkpoint_seconds = 20},
      {10});
  // Ten steps end after 95 s.
  EXPECT_EQ(found.steps_between_checkpoints, 10);
  EXPECT_NEAR(found.share, 100.0 / 120, 1e-9);
  EXPECT_NEAR(*found.expected_share, 100.0 / 120, 1e-9);
  EXPECT_EQ(found.failures, 0);
}

// Steps of different lengths, counted one after the other.
TEST(Goodput, SavesAfterTheFirstStepThatEndsTheInterval) {
  const std::vector<double> steps{3, 1, 4, 1, 5};
  for (const double interval : {0.5, 1.0, 3.0, 7.0, 14.0, 15.0, 30.5}) {
    size_t at = 0;
    double kept = 0, all = 0;
    int64_t last = 0;
    for (int checkpoint = 0; checkpoint < 2'000'000; ++checkpoint) {
      double seconds = 0;
      last = 0;
      for (; seconds < interval; ++last) seconds += steps[at++ % steps.size()];
      kept += seconds;
      all += seconds + 2;
    }
    const auto found = simulate_goodput({.mean_between_failures = kInfinite,
                                         .checkpoint_interval = interval,
                                         .checkpoint_seconds = 2},
                                        steps);
    EXPECT_NEAR(found.share, kept / all, 1e-9) << interval;
    EXPECT_EQ(found.steps_between_checkpoints, last) << interval;
  }
}

// Would take hours if every step was counted.
TEST(Goodput, OfManyStepsBetweenCheckpoints) {
  std::vector<double> steps(2'000'000, 0.5);
  const auto found = simulate_goodput(
      {.mean_between_failures = 1e7, .checkpoint_interval = 5e5, .checkpoint_seconds = 100}, steps);
  EXPECT_EQ(found.steps_between_checkpoints, 1'000'000);
  EXPECT_NEAR(found.share, *found.expected_share, 0.01);
}

// Nearly every restart is interrupted by the next failure.
TEST(Goodput, IsNearNothingWhereRestartsTakeLongerThanFailures) {
  const auto found = simulate_goodput(
      {.mean_between_failures = 60, .checkpoint_interval = 600, .restart_seconds = kHour}, {1});
  EXPECT_EQ(found.failures, 20'000);
  EXPECT_LT(found.share, 1e-3);
  EXPECT_GT(found.restart_share, 0.99);
}

TEST(Goodput, IsBestNearYoungsInterval) {
  FailureModel model{.mean_between_failures = kHour, .checkpoint_seconds = 10};
  const auto share = [&](double interval) {
    model.checkpoint_interval = interval;
    return simulate_goodput(model, {1}).share;
  };
  const double best = simulate_goodput(model, {1}).best_interval;
  EXPECT_NEAR(best, std::sqrt(2 * 10 * kHour), 1e-9);
  EXPECT_GT(share(best), share(best / 4));
  EXPECT_GT(share(best), share(best * 4));
}

TEST(Goodput, OfOtherDistributions) {
  FailureModel model{.mean_between_failures = kHour, .shape = 0.7, .seed = 3};
  const auto found = simulate_goodput(model, {1});
  EXPECT_FALSE(found.expected_share);
  // Failures have the same frequency, but many follow soon after the last one, when little is lost.
  EXPECT_NEAR(found.simulated_seconds / static_cast<double>(found.failures), kHour, 150);
  model.shape = 1;
  EXPECT_GT(found.share, simulate_goodput(model, {1}).share);
  // The same seed gives the same numbers.
  EXPECT_EQ(simulate_goodput(model, {1}).share, simulate_goodput(model, {1}).share);
}

TEST(Goodput, RefusesWhatIsNoTime) {
  EXPECT_ERROR(simulate_goodput({.mean_between_failures = 0}, {1}), ErrorKind::usage,
               "[plan] mean time between failures; got 0, expected seconds above 0");
  EXPECT_ERROR(simulate_goodput({.checkpoint_seconds = -1}, {1}), ErrorKind::usage,
               "[plan] time of a checkpoint; got -1, expected seconds from 0 on");
  EXPECT_ERROR(simulate_goodput({.restart_seconds = kInfinite}, {1}), ErrorKind::usage,
               "[plan] time of a restart; got inf, expected seconds from 0 on");
  EXPECT_ERROR(simulate_goodput({.shape = 0}, {1}), ErrorKind::usage,
               "[plan] shape of times between failures; got 0, expected a number above 0");
  EXPECT_ERROR(simulate_goodput({}, {1, 0}), ErrorKind::usage,
               "[plan] time of a step; got 0, expected seconds above 0");
}

}  // namespace
}  // namespace troika::plan
