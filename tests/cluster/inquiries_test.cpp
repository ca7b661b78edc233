#include "troika/cluster/rendezvous/inquiries.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "troika/base/error.h"

namespace troika::cluster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Milliseconds kLongTime{1'000'000};

class InquiriesTest : public testing::Test {
 protected:
  struct Sent {
    int rank;
    Frame frame;
  };

  void arrive(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) inquiries_.arrived(rank);
  }
  // Returns the messages since the last call: "rank: ? wave" for a question, and
  // "rank: name text=ranks" for answers.
  std::vector<std::string> said() {
    std::vector<std::string> lines;
    for (const auto& [rank, frame] : std::exchange(sent_, {})) {
      if (frame.message == Message::ask) {
        lines.push_back(fmt::format("{}: ? {}", rank, frame.number));
        continue;
      }
      std::string line = fmt::format("{}: {}", rank, frame.key);
      unpack_answers(frame.value, kRanks, [&](int who, const std::string& text) {
        line += fmt::format(" {}={}", text, who);
      });
      lines.push_back(line);
    }
    return lines;
  }
  void wait_until_due() {
    now_ = std::max(now_, inquiries_.due().value());
    inquiries_.proceed();
  }

  static constexpr int kRanks = 1000;
  std::vector<Sent> sent_;
  net::Duration now_{};
  Inquiries inquiries_{[this](const std::vector<int>& ranks, const Frame& frame) {
                         for (const int rank : ranks) sent_.push_back({rank, frame});
                       },
                       [this] { return now_; }};
};

TEST_F(InquiriesTest, OneAsksAndAllOthersAnswer) {
  arrive(4);
  inquiries_.ask(1, "a", "?", kLongTime);
  EXPECT_THAT(said(), ElementsAre("0: ? 0", "2: ? 0", "3: ? 0"));
  inquiries_.answer(3, 0, "same");
  inquiries_.answer(0, 0, "same");
  EXPECT_THAT(said(), IsEmpty());
  inquiries_.answer(2, 0, "other");
  EXPECT_THAT(said(), ElementsAre("1: a other=2 same=0 same=3"));
  inquiries_.answer(2, 0, "again");
  EXPECT_THAT(said(), IsEmpty());
  EXPECT_FALSE(inquiries_.due());
}

TEST_F(InquiriesTest, AnAskerWhoseTimeIsOverGetsWhatHasComeAndKeepsNobodyWaiting) {
  arrive(4);
  inquiries_.ask(1, "a", "?", Milliseconds(30));
  inquiries_.ask(2, "b", "?", kLongTime);
  inquiries_.answer(0, 0, "x");
  EXPECT_THAT(said(), ElementsAre("0: ? 0", "2: ? 0", "3: ? 0"));
  wait_until_due();
  EXPECT_THAT(said(), ElementsAre("1: a x=0", "0: ? 1", "1: ? 1", "3: ? 1"));
}

TEST_F(InquiriesTest, AllAskAtOnceAndAllGetAllForSomeFramesEach) {
  arrive(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) inquiries_.ask(rank, "a", "?", kLongTime);
  size_t frames = 0;
  std::map<int, int> answers;
  while (!sent_.empty()) {
    const auto sent = std::exchange(sent_, {});
    frames += sent.size();
    for (const auto& [rank, frame] : sent) {
      if (frame.message == Message::ask) {
        inquiries_.answer(rank, frame.number, "in call 7");
      } else {
        unpack_answers(frame.value, kRanks, [&](int, const std::string&) { ++answers[rank]; });
      }
    }
  }
  // Two waves of questions, and one frame of answers to each.
  EXPECT_LE(frames, 3u * kRanks);
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_GE(answers[rank], kRanks - 1) << rank;
}

TEST_F(InquiriesTest, NobodyGetsAnAnswerThatWasGivenBeforeItAsked) {
  arrive(3);
  inquiries_.ask(0, "first", "?", kLongTime);
  inquiries_.answer(1, 0, "early");
  inquiries_.ask(2, "second", "?", kLongTime);
  EXPECT_THAT(said(), ElementsAre("1: ? 0", "2: ? 0"));
  inquiries_.answer(2, 0, "early");
  EXPECT_THAT(said(), ElementsAre("0: first early=1 early=2", "0: ? 1", "1: ? 1"));
  inquiries_.answer(0, 1, "late");
  inquiries_.answer(1, 1, "late");
  EXPECT_THAT(said(), ElementsAre("2: second late=0 late=1"));
}

TEST_F(InquiriesTest, OtherQuestionsDoNotWait) {
  arrive(2);
  inquiries_.ask(0, "a", "?", kLongTime);
  inquiries_.ask(0, "b", "!", kLongTime);
  EXPECT_THAT(said(), ElementsAre("1: ? 0", "1: ? 1"));
}

TEST_F(InquiriesTest, ASilentRankHoldsUpNeitherTheAnswersNorTheNext) {
  arrive(4);
  inquiries_.ask(0, "a", "?", kLongTime);
  inquiries_.ask(1, "b", "?", kLongTime);
  inquiries_.answer(1, 0, "x");
  said();
  wait_until_due();
  EXPECT_THAT(said(), ElementsAre("0: a x=1", "0: ? 1", "2: ? 1", "3: ? 1"));
  inquiries_.answer(2, 0, "y");
  inquiries_.gone(3);
  EXPECT_THAT(said(), ElementsAre("0: a y=2"));
}

TEST_F(InquiriesTest, WhoWaitsNoMoreIsForgotten) {
  arrive(3);
  inquiries_.ask(0, "a", "?", Milliseconds(0));
  inquiries_.proceed();
  said();
  inquiries_.answer(1, 0, "x");
  inquiries_.answer(2, 0, "x");
  EXPECT_THAT(said(), IsEmpty());
  inquiries_.ask(1, "b", "?", kLongTime);
  inquiries_.gone(1);
  said();
  inquiries_.answer(0, 1, "x");
  inquiries_.answer(2, 1, "x");
  EXPECT_THAT(said(), IsEmpty());
}

TEST(Answers, WhatIsBrokenIsRefused) {
  const auto nothing = [](int, const std::string&) {};
  const auto of_ranks = [](const std::string& ranks) {
    return encode({Message::answer, 0, ranks, "text"});
  };
  for (const auto& packed :
       {std::string("x"), of_ranks(""), of_ranks("1"), of_ranks("1-2-3"), of_ranks("-1-2"),
        of_ranks("0-9"), of_ranks("a-b"), of_ranks("0-1").substr(0, 10)}) {
    EXPECT_THROW(unpack_answers(packed, 5, nothing), Error) << packed;
  }
  int count = 0;
  unpack_answers(of_ranks("0-1,4-4"), 5, [&](int, const std::string&) { ++count; });
  EXPECT_EQ(count, 3);
}

}  // namespace
}  // namespace troika::cluster
