#include "troika/base/clock.h"

#include <gtest/gtest.h>

namespace troika {
namespace {

TEST(Deadline, LiesAfterNow) {
  const auto before = Clock::now();
  const auto deadline = Deadline::after(std::chrono::hours(1));
  EXPECT_GE(deadline.at(), before + std::chrono::hours(1));
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(deadline.left(), std::chrono::minutes(59));
  EXPECT_LE(deadline.left(), std::chrono::hours(1));
}

TEST(Deadline, OfNoTimeHasPassed) {
  for (const auto span : {Milliseconds(0), Milliseconds(-5), Milliseconds(-3'600'000)}) {
    const auto deadline = Deadline::after(span);
    EXPECT_TRUE(deadline.passed());
    EXPECT_EQ(deadline.left(), Milliseconds(0));
  }
}

TEST(Deadline, TooFarForTheClockIsItsEnd) {
  EXPECT_EQ(Deadline::after(Milliseconds::max()).at(), Clock::time_point::max());
  EXPECT_EQ(Deadline::after(std::chrono::hours::max()).at(), Clock::time_point::max());
  EXPECT_EQ(Deadline::after(Clock::duration::max()).at(), Clock::time_point::max());
  EXPECT_FALSE(Deadline::after(Milliseconds::max()).passed());
  EXPECT_GT(Deadline::after(Milliseconds::max()).left(), std::chrono::hours(24 * 365 * 200));
}

}  // namespace
}  // namespace troika
