// Cases that occur in real launches only if the kernel is stuck or by unlucky timing.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "troika/cluster/elastic/rounds.h"

namespace troika::cluster {
namespace {

using testing::ElementsAre;
using Kind = RoundEnd::Kind;

class RoundsTest : public testing::Test {
 protected:
  static AgentHello hello(int64_t pid, bool hosts) {
    return {.host = "here", .pid = pid, .hosts = hosts, .options = {{"--rdzv-id", "a"}}};
  }
  void join(int agent) { EXPECT_FALSE(rounds_.admit(agent, hello(agent, agent == kHost))); }

  // "agent: what", since the last call.
  std::vector<std::string> said() { return std::exchange(said_, {}); }

  static constexpr int kHost = 0;
  std::vector<std::string> said_;
  Rounds rounds_{{.min_nodes = 1,
                  .max_nodes = 2,
                  .last_call_timeout = Milliseconds(0),
                  .join_timeout = Milliseconds(1'000'000),
                  .stop_timeout = Milliseconds(0)},
                 hello(kHost, true),
                 [] { return LaunchPlace{}; },
                 [this](int agent, const Frame& frame) {
                   const auto place = launch_place_from_json(frame.value);
                   const std::string what = frame.message == Message::round
                                                ? "machine " + std::to_string(place->node_rank) +
                                                      " of " + std::to_string(place->num_nodes) +
                                                      " in " + std::to_string(place->round)
                                            : frame.message == Message::stop ? "stop"
                                            : frame.message == Message::refused
                                                ? "refused"
                                                : "over " + std::to_string(frame.number);
                   said_.push_back(std::to_string(agent) + ": " + what);
                 },
                 [] { return net::Duration(0); }};
};

TEST_F(RoundsTest, ALaunchThatDoesNotEndItsRanksIsLeftBehind) {
  join(1);  // before the host
  EXPECT_THAT(said(), ElementsAre());
  join(kHost);
  EXPECT_THAT(said(), ElementsAre("0: machine 0 of 2 in 0", "1: machine 1 of 2 in 0"));
  rounds_.failing(kHost);
  rounds_.ended(kHost, {Kind::failed, 7});
  EXPECT_THAT(said(), ElementsAre("0: stop", "1: stop"));
  ASSERT_EQ(rounds_.due(), net::Duration(0));
  rounds_.late("");
  EXPECT_THAT(said(), ElementsAre("1: refused"));
  rounds_.late("");  // the last call
  EXPECT_THAT(said(), ElementsAre("0: machine 0 of 1 in 1"));
}

TEST_F(RoundsTest, ALaunchWhoseRanksNeverStartedStopsTheOthers) {
  join(1);
  join(kHost);
  said();
  rounds_.ended(1, {Kind::failed, 127});
  EXPECT_THAT(said(), ElementsAre("0: stop"));
  rounds_.ended(kHost, {Kind::stopped, 143});
  EXPECT_THAT(said(), ElementsAre("0: over 127", "1: over 127"));
}

TEST_F(RoundsTest, AMachineThatComesDoesNotKeepTheRunFromItsEnd) {
  join(kHost);
  rounds_.late("");
  join(1);
  EXPECT_THAT(said(), ElementsAre("0: machine 0 of 1 in 0", "0: stop"));
  rounds_.ended(kHost, {Kind::finished, 0});
  EXPECT_THAT(said(), ElementsAre("0: over 0", "1: over 0"));
}

TEST_F(RoundsTest, NorAJobFromTheQueue) {
  join(kHost);
  rounds_.late("");
  join(1);
  said();
  rounds_.ended(kHost, {Kind::saved, 5});
  EXPECT_THAT(said(), ElementsAre("0: over 5", "1: over 5"));
}

TEST_F(RoundsTest, ALaunchWithoutTheOptionsOfTheOthersIsRefused) {
  join(kHost);
  auto without = hello(1, false);
  without.options.clear();
  const auto refusal = rounds_.admit(1, without);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->text.what, "launches of one run disagree on which options there are");
  EXPECT_EQ(refusal->text.got, "fewer options from process 1 on here");
  auto more = hello(2, false);
  more.options.emplace_back("--more", "1");
  EXPECT_TRUE(rounds_.admit(2, more));
  auto renamed = hello(3, false);
  renamed.options[0].first = "--other";
  EXPECT_TRUE(rounds_.admit(3, renamed));
  EXPECT_THAT(said(), ElementsAre());
}

TEST_F(RoundsTest, ThereIsOneHost) {
  join(kHost);
  const auto refusal = rounds_.admit(1, hello(1, true));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->text.what, "two launches host one run");
  rounds_.depart(1, 0);  // of one that was refused
  EXPECT_THAT(said(), ElementsAre());
}

}  // namespace
}  // namespace troika::cluster
