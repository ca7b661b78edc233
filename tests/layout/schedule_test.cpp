#include "troika/layout/schedule.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"

namespace troika::layout {
namespace {

// One forward, one backward, on three ranks with four micro-batches (Narayanan et al. 2019).
constexpr const char* kOneForwardOneBackward = R"(
0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0 0F3 0SEND_F3 0RECV_B1 0B1 0RECV_B2 0B2 0RECV_B3 0B3 0REDUCE 0STEP
1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1RECV_B0 1B0 1SEND_F1 1RECV_F2 1SEND_B0 1F2 1RECV_B1 1B1 1SEND_F2 1RECV_F3 1SEND_B1 1F3 1RECV_B2 1B2 1SEND_F3 1SEND_B2 1RECV_B3 1B3 1SEND_B3 1REDUCE 1STEP
2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1 2RECV_F2 2F2 2B2 2SEND_B2 2RECV_F3 2F3 2B3 2SEND_B3 2REDUCE 2STEP
)";

// Two stages on two ranks, backward passes in two parts, and an input gradient that is not sent.
constexpr const char* kSplitBackward = R"(
0GATHER 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0RECV_B1 0I1 0W0 0W1 0REDUCE 0STEP
1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1W0 1W1 1STEP
)";

std::string problem_of(const std::string& text) {
  try {
    Schedule::parse(text).verify();
  } catch (const Error& problem) {
    return problem.what();
  }
  return "none";
}

// Replaces the first `what` in a schedule that holds.
std::string with(std::string text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(Schedule, TextRoundTrips) {
  for (const std::string text : {kOneForwardOneBackward, kSplitBackward}) {
    const auto schedule = Schedule::parse(text);
    EXPECT_EQ("\n" + schedule.text(), text);
    EXPECT_EQ(Schedule::parse(schedule.text()), schedule);
  }
  EXPECT_EQ(one_stage(2).text(), "0F0 0B0 0F1 0B1 0REDUCE 0STEP\n");
}

TEST(Schedule, TakesWhatHolds) {
  EXPECT_EQ(problem_of(kOneForwardOneBackward), "none");
  EXPECT_EQ(problem_of(kSplitBackward), "none");
  EXPECT_EQ(problem_of(one_stage(1).text()), "none");
  EXPECT_EQ(problem_of(one_stage(5).text()), "none");
  EXPECT_EQ(problem_of("0F0 0SEND_F0\n1RECV_F0 1F0\n"), "none") << "an evaluation";
  // A rank with the first stage and the last needs no message of its own.
  EXPECT_EQ(problem_of("0F0 0SEND_F0 2RECV_F0 2F0 2B0 2SEND_B0 0RECV_B0 0B0\n"
                       "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0\n"),
            "none");
  EXPECT_EQ(problem_of("0F0 1F0 1B0 0B0\n"), "none");
  EXPECT_EQ(problem_of("0F0 1F0 1I0 0I0 0W0 1W0\n"), "none");
}

TEST(Schedule, RefusesWhatIsIncomplete) {
  EXPECT_EQ(
      problem_of("0F0 0B0 0F1"),
      "[layout] stage 0, micro-batch 1 of a schedule; got 0 of B, 0 of I, 0 of W, expected B, "
      "or I and W");
  EXPECT_EQ(
      problem_of("0F0 0I0"),
      "[layout] stage 0, micro-batch 0 of a schedule; got 0 of B, 1 of I, 0 of W, expected B, "
      "or I and W");
  EXPECT_EQ(
      problem_of("0F0 0B0 0W0"),
      "[layout] stage 0, micro-batch 0 of a schedule; got 1 of B, 0 of I, 1 of W, expected B, "
      "or I and W");
  EXPECT_EQ(problem_of("0F0 0B0 0F0"),
            "[layout] rank 0 of a schedule; got 0F0 twice, expected once");
  EXPECT_EQ(problem_of("0F0 0F1 1F0 1F1\n0B0\n"),
            "[layout] stage 0 of a schedule; got actions on rank 0 and rank 1, expected one rank");
  EXPECT_EQ(problem_of("0F0 2F0"),
            "[layout] stages of a schedule; got none of number 1, expected "
            "consecutive numbers from 0 on");
  EXPECT_EQ(problem_of("0F0 0F1 1F0\n"),
            "[layout] stage 1, micro-batch 1 of a schedule; got no F, expected one");
}

TEST(Schedule, RefusesAnOrderThatStandsStill) {
  EXPECT_EQ(
      problem_of("0B0 0F0"),
      "[layout] a schedule stands still; got rank 0 at 0B0, expected a receive for each send, "
      "in one order on both ranks");
  // Eager sends would let these pass.
  EXPECT_THAT(
      problem_of("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n"
                 "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1\n"),
      testing::StartsWith("[layout] a schedule stands still; got rank 0 at 0SEND_F1, rank 1 "
                          "at 1SEND_B0,"));
  const std::string good = kOneForwardOneBackward;
  for (const auto& [what, by] : std::vector<std::pair<std::string, std::string>>{
           {"0SEND_F1 ", ""},                     // a receive without its send
           {"1RECV_B3 ", ""},                     // a send without its receive
           {"1F2 1RECV_B1 1B1", "1RECV_B1 1B1"},  // (also incomplete)
           {"0REDUCE 0STEP", "0STEP 0REDUCE"},    // holds
           {"0RECV_B3 0B3 0REDUCE", "0REDUCE 0RECV_B3 0B3"},
           {"0RECV_B3 0B3 0REDUCE 0STEP", "0STEP 0RECV_B3 0B3 0REDUCE"},
           {"1RECV_F1 1F1", "1F1 1RECV_F1"},
           {"1F0 1SEND_F0", "1SEND_F0 1F0"},
           {"2B0 2SEND_B0", "2SEND_B0 2B0"},
           {"2F0 2B0", "2B0 2F0"}}) {
    const bool holds = by == "0STEP 0REDUCE";
    EXPECT_EQ(problem_of(with(good, what, by)) == "none", holds) << by;
  }
  EXPECT_NE(problem_of(with(kSplitBackward, "1I0 1SEND_B0", "1SEND_B0 1I0")), "none");
  EXPECT_NE(problem_of(with(kSplitBackward, "1I1 1SEND_B1 1W0 1W1", "1W1 1I1 1SEND_B1 1W0")),
            "none");
  EXPECT_EQ(problem_of("0F0 0SEND_F0 1RECV_F0 1F0"),
            "[layout] rank 0 of a schedule; got 0SEND_F0, expected messages between neighbouring "
            "stages on two ranks");
}

TEST(Schedule, RefusesWhatIsNoAction) {
  for (const std::string word :
       {"0X0", "F0", "0F", "0STEP1", "0F-1", "-1F0", "0SEND_0", "99999999999F0", "0F99999999999"}) {
    EXPECT_THAT(problem_of("0F0\n1F0 " + word),
                testing::StartsWith("[layout] rank 1 of a schedule; got " + word +
                                    ", expected STAGE KIND MICRO-BATCH as 0F2, with one of"));
  }
}

}  // namespace
}  // namespace troika::layout
