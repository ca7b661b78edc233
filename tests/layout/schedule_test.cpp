#include "troika/layout/schedules/schedule.h"

#include <gmock/gmock.h>

#include <random>

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
  EXPECT_EQ(one_stage(3, 2).text(), "0F0 0F1 0B0 0B1 0F2 0B2 0REDUCE 0STEP\n");
}

// Each rank begins a send and a receive together.
constexpr const char* kBatches = R"(
0F0 0SEND_F0 0F1 (0SEND_F1;0RECV_B0) 0B0 0RECV_B1 0B1 0STEP
1RECV_F0 1F0 1B0 (1SEND_B0;1RECV_F1) 1F1 1B1 1SEND_B1 1STEP
)";

// Stage 0 sends to stage 2 straight.
constexpr const char* kSkip = R"(
0F0 0SEND_F0 0SEND_F0>2 0RECV_B0<2 0RECV_B0 0B0 0STEP
1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0 1STEP
2RECV_F0<0 2RECV_F0 2F0 2B0 2SEND_B0>0 2SEND_B0 2STEP
)";

TEST(Schedule, TextHasGroupsAndPeers) {
  for (const std::string text : {kBatches, kSkip}) {
    EXPECT_EQ("\n" + Schedule::parse(text).text(), text);
    EXPECT_EQ(problem_of(text), "none");
  }
  // PyTorch's table: commas, empty cells and its mark of an overlap.
  const auto table = Schedule::parse("# own\n0F0,0F1,,(0F2;0B0)OVERLAP_F_B,0B1,0B2,0STEP\r\n");
  EXPECT_EQ(table.text(), "0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2 0STEP\n");
  EXPECT_NO_THROW(table.verify());
}

TEST(Schedule, TakesWhatHolds) {
  EXPECT_EQ(problem_of(kOneForwardOneBackward), "none");
  EXPECT_EQ(problem_of(kSplitBackward), "none");
  EXPECT_EQ(problem_of(one_stage(1).text()), "none");
  EXPECT_EQ(problem_of(one_stage(5).text()), "none");
  EXPECT_EQ(problem_of(one_stage(5, 2).text()), "none");
  EXPECT_EQ(problem_of("0F0 0SEND_F0\n1RECV_F0 1F0\n"), "none") << "an evaluation";
  // A rank with the first stage and the last needs no message of its own.
  EXPECT_EQ(problem_of("0F0 0SEND_F0 2RECV_F0 2F0 2B0 2SEND_B0 0RECV_B0 0B0 0STEP 2STEP\n"
                       "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0 1STEP\n"),
            "none");
  EXPECT_EQ(problem_of("0F0 1F0 1B0 0B0 1STEP 0STEP\n"), "none");
  EXPECT_EQ(problem_of("0F0 1F0 1I0 0I0 0W0 1W0 0STEP 1STEP\n"), "none");
}

TEST(Schedule, RefusesWhatIsIncomplete) {
  const std::pair<const char*, const char*> rows[] = {
      {"0F0 0B0 0F1 0STEP",
       "rank 0 of a schedule; got 0 of 0B1 (backward, stage 0, micro-batch 1), 0 of 0I1 and 0 of "
       "0W1, expected the first, or both others"},
      {"0F0 0I0 0STEP",
       "rank 0 of a schedule; got 0 of 0B0 (backward, stage 0, micro-batch 0), 1 of 0I0 and 0 of "
       "0W0, expected the first, or both others"},
      {"0F0 0B0 0W0 0STEP",
       "rank 0 of a schedule; got 1 of 0B0 (backward, stage 0, micro-batch 0), 0 of 0I0 and 1 of "
       "0W0, expected the first, or both others"},
      {"0F0 0F1 0B0 0B0 0STEP",
       "rank 0 of a schedule; got 0B0 (backward, stage 0, micro-batch 0) twice, expected once"},
      {"0F0 0F1 1F0 1F1\n0B0\n",
       "rank 1 of a schedule; got 0B0 (backward, stage 0, micro-batch 0), of a stage that is on "
       "rank 0, expected each stage on one rank"},
      {"0F0 2F0",
       "forward passes of a schedule; got 2, expected 3: 3 stages times 1 micro-batches, as it has "
       "actions of stage 2 and of micro-batch 0"},
      {"0F0 0F1 1F0\n",
       "forward passes of a schedule; got 3, expected 4: 2 stages times 2 micro-batches, as it has "
       "actions of stage 1 and of micro-batch 1"},
      {"0F0 0F0 0F1 1F0\n",
       "rank 0 of a schedule; got 0F0 (forward, stage 0, micro-batch 0) twice, expected once"},
      {"0F1000000 1000000B0", "forward passes of a schedule; got 1, expected 1000002000001"},
      {"", "a schedule; got no forward pass, expected one of each stage and micro-batch"},
      {"0F0 0B0",
       "rank 0 of a schedule; got no 0STEP (optimizer step, stage 0), expected one, as the last "
       "action"},
      {"0F0 0B0 0STEP 0STEP",
       "rank 0 of a schedule; got 0STEP (optimizer step, stage 0) twice, expected once"},
      {"0F0 0B0 0STEP 0REDUCE",
       "rank 0 of a schedule; got 0REDUCE (gradients reduced, stage 0) after 0STEP (optimizer "
       "step, stage 0), expected nothing but steps after a step"},
      {"0F0 0STEP",
       "rank 0 of a schedule; got 0STEP (optimizer step, stage 0), expected none without backward "
       "passes"},
      {"0F0 0SEND_F0 1RECV_F0 1F0",
       "rank 0 of a schedule; got 0SEND_F0 (activations sent, stage 0, micro-batch 0), expected "
       "messages between stages on two ranks"},
      {"0F0 0SEND_F0 0SEND_F0\n1RECV_F0 1F0",
       "rank 0 of a schedule; got 0SEND_F0 (activations sent, stage 0, micro-batch 0) twice, "
       "expected once"}};
  for (const auto& [text, problem] : rows) {
    EXPECT_THAT(problem_of(text), testing::StartsWith(std::string("[layout] ") + problem)) << text;
  }
}

TEST(Schedule, RefusesAnOrderThatStandsStill) {
  EXPECT_THAT(
      problem_of("0B0 0F0 0STEP"),
      testing::StartsWith("[layout] a schedule deadlocks; got rank 0 at 0B0 (backward, stage 0, "
                          "micro-batch 0), which needs 0F0, expected a receive for each send"));
  // Eager sends would let these pass.
  EXPECT_THAT(
      problem_of("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0STEP\n"
                 "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1STEP\n"),
      testing::StartsWith(
          "[layout] a schedule deadlocks; got rank 0 at 0SEND_F1 (activations sent, stage 0, "
          "micro-batch 1), which needs 1RECV_F1; rank 1 at 1SEND_B0 (gradients sent, stage 1, "
          "micro-batch 0), which needs 0RECV_B0, expected"));
  const std::string good = kOneForwardOneBackward;
  for (const auto& [what, by] : std::vector<std::pair<std::string, std::string>>{
           {"0SEND_F1 ", ""},  // a receive without its send
           {"1RECV_B3 ", ""},  // a send without its receive
           {"0RECV_B3 0B3 0REDUCE", "0REDUCE 0RECV_B3 0B3"},
           {"1RECV_F1 1F1", "1F1 1RECV_F1"},
           {"1F0 1SEND_F0", "1SEND_F0 1F0"},
           {"2B0 2SEND_B0", "2SEND_B0 2B0"},
           {"2F0 2B0", "2B0 2F0"}}) {
    EXPECT_THAT(problem_of(with(good, what, by)), testing::HasSubstr("deadlocks")) << by;
  }
  for (const auto& [what, by] : std::vector<std::pair<std::string, std::string>>{
           {"1I0 1SEND_B0", "1SEND_B0 1I0"}, {"1I1 1SEND_B1 1W0 1W1", "1W1 1I1 1SEND_B1 1W0"}}) {
    EXPECT_THAT(problem_of(with(kSplitBackward, what, by)), testing::HasSubstr("deadlocks"));
  }
  EXPECT_THAT(problem_of(with(kBatches, "(1SEND_B0;1RECV_F1)", "1SEND_B0 1RECV_F1")), "none")
      << "the other batch takes both";
  EXPECT_THAT(problem_of(with(with(kBatches, "(1SEND_B0;1RECV_F1)", "1SEND_B0 1RECV_F1"),
                              "(0SEND_F1;0RECV_B0)", "0SEND_F1 0RECV_B0")),
              testing::HasSubstr("deadlocks"));
  EXPECT_THAT(problem_of(with(kSkip, "2RECV_F0<0 ", "")), testing::HasSubstr("deadlocks"));
  EXPECT_THAT(problem_of(with(with(kSkip, " 0RECV_B0<2", ""), " 2SEND_B0>0", "")),
              testing::HasSubstr("rank 0 at 0B0 (backward, stage 0, micro-batch 0), which needs "
                                 "0RECV_B0<2"));
}

TEST(Schedule, RefusesWhatIsNoAction) {
  for (const std::string word : {"0X0",
                                 "F0",
                                 "0F",
                                 "0STEP1",
                                 "0F-1",
                                 "-1F0",
                                 "0SEND_0",
                                 "99999999999F0",
                                 "0F99999999999",
                                 "0F0>1",
                                 "0SEND_F0>1",
                                 "0SEND_F0<2",
                                 "0RECV_F0>2",
                                 "5SEND_B0>4",
                                 "0SEND_F0>",
                                 "(0F0)",
                                 "(0F0;0F1)",
                                 "(0F0;0B0)",
                                 "(0SEND_F0;0RECV_B0)OVERLAP_F_B",
                                 "(0F1;0B0",
                                 "(0B0;0F1)OVERLAP_F_B",
                                 "()",
                                 "(",
                                 ")"}) {
    EXPECT_THAT(problem_of("# rows\n0F0\n\n1F0 " + word),
                testing::StartsWith("[layout] line 4 of a schedule (rank 1); got " + word +
                                    ", expected STAGE KIND MICRO-BATCH as 0F2, with one of"));
  }
}

// Texts that nobody would write are refused with a line, or hold as they are.
TEST(Schedule, RefusesBrokenTextWithItsLine) {
  std::mt19937 random(21);
  const std::string alphabet = "0123456789FBIWSENDRCV_(;)<>OL ,\n#";
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = i % 2 == 0 ? kOneForwardOneBackward : kSplitBackward;
    for (int edits = 0; edits <= i % 4; ++edits) {
      const size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      if (random() % 2 == 0)
        text[at] = c;
      else
        text.insert(at, 1, c);
    }
    Schedule schedule;
    try {
      schedule = Schedule::parse(text, "own.txt");
    } catch (const Error& problem) {
      EXPECT_THAT(problem.what(), testing::ContainsRegex("^\\[layout\\] line [0-9]+ of own.txt "));
      ++refused;
      continue;
    }
    EXPECT_EQ(Schedule::parse(schedule.text()), schedule) << text;
    try {
      schedule.verify();
    } catch (const Error& problem) {
      EXPECT_THAT(problem.what(), testing::StartsWith("[layout] "));
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace troika::layout
