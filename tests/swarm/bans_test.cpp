// Peers that lie are found out, and banned by the others.
#include "troika/swarm/bans.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/swarm/trainers.h"

namespace troika::swarm {
namespace {

using testing::SizeIs;

constexpr size_t kPeersOfBans = 8;
constexpr size_t kLiarsOfBans = 2;

// The gradient of an honest peer: noise, which has the same length for all.
void make_noise(size_t index, std::vector<double>& values) {
  Random random(index);
  for (auto& value : values) value = random.normal();
}

// Runs a swarm in which the first peers lie, and returns the last epoch to which an honest peer had
// a liar in its group.
int64_t last_epoch_with_liars(const std::function<void(std::vector<double>&)>& lie) {
  Trainers run(31);
  run.lies = [&](size_t index, std::vector<double>& values) {
    make_noise(index, values);
    if (index < kLiarsOfBans) lie(values);
  };
  for (size_t i = 0; i < kPeersOfBans; ++i) {
    run.add(8, {.aggregation = Aggregation::centred_clip});
  }
  int64_t last = -1;
  run.checked = [&](size_t index, const SwarmStep& step, const std::vector<double>&) {
    if (index < kLiarsOfBans) return;
    for (const auto& member : step.members) {
      const bool is_liar =
          member == run.all[0]->identity->name() || member == run.all[1]->identity->name();
      if (is_liar) last = std::max(last, step.epoch);
    }
  };
  pass(run.network, 40);
  const auto& honest = *run.all[kLiarsOfBans];
  EXPECT_GT(honest.steps, 20);
  for (size_t i = 0; i < kPeersOfBans; ++i) {
    const auto& name = run.all[i]->identity->name();
    EXPECT_EQ(honest.peer->is_banned(name), i < kLiarsOfBans) << i;
    EXPECT_EQ(run.all[i]->peer->is_banned(name), i < kLiarsOfBans) << i;
  }
  EXPECT_THAT(honest.peer->peers(), SizeIs(kPeersOfBans - kLiarsOfBans));
  return last;
}

TEST(Bans, LiarsAreInNoGroupAfterTwentySteps) {
  const std::vector<std::function<void(double&)>> lies{[](double& value) { value = NAN; },
                                                       [](double& value) { value *= 100; },
                                                       [](double& value) { value = 10; }};
  for (size_t i = 0; i < lies.size(); ++i) {
    const auto last = last_epoch_with_liars([&](std::vector<double>& values) {
      for (auto& value : values) lies[i](value);
    });
    EXPECT_GE(last, 0) << i;
    EXPECT_LT(last, 20) << i;
  }
}

TEST(Bans, NobodyIsBannedWithoutLies) {
  Trainers run(32);
  run.lies = make_noise;
  for (size_t i = 0; i < kPeersOfBans; ++i) {
    run.add(4 + static_cast<double>(i), {.aggregation = Aggregation::centred_clip});
  }
  pass(run.network, 30);
  for (const auto& trainer : run.all) {
    EXPECT_THAT(trainer->peer->peers(), SizeIs(kPeersOfBans));
    EXPECT_EQ(trainer->loads, 0);
  }
}

TEST(Bans, OnlyPeersAreAccused) {
  Record record{.peer = std::string(64, 'a'), .sub_key = std::string(64, 'b')};
  record.body = R"({"why": "a whim"})";
  EXPECT_TRUE(is_accusation(record));
  for (const auto& name : {std::string("b"), std::string(64, 'B'), std::string(63, 'b') + '\n'}) {
    record.sub_key = name;
    EXPECT_FALSE(is_accusation(record)) << name;
  }
}

// A few that accuse others achieve nothing.
TEST(Bans, MostPeersMustAccuse) {
  Trainers run(33);
  for (size_t i = 0; i < 5; ++i) run.add(8);
  pass(run.network, 5);
  const auto victim = run.all[4]->identity->name();
  for (size_t i = 0; i < 3; ++i) {
    run.all[i]->peer->directory().publish(kAccusation, victim, 0, std::chrono::seconds(30),
                                          R"({"why": "a whim"})");
    pass(run.network, 5);
    EXPECT_EQ(run.all[3]->peer->is_banned(victim), i == 2) << i;
  }
  // It may come back when the accusations have expired.
  pass(run.network, 60);
  EXPECT_FALSE(run.all[3]->peer->is_banned(victim));
}

}  // namespace
}  // namespace troika::swarm
