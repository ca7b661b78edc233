// Simulated swarms: their reports, and that these follow the scenario.
#include "troika/swarm/simulation/simulation.h"

#include <gmock/gmock.h>

#include <functional>

#include "tests/support/errors.h"

namespace troika::swarm {
namespace {

Scenario small() {
  return {.peers = 8,
          .seconds = 120,
          .kinds = {{.name = "fast", .share = 3, .up = 25e6, .down = 25e6, .speed = 10},
                    {.name = "client",
                     .share = 1,
                     .up = 2.5e6,
                     .down = 2.5e6,
                     .latency = .03,
                     .speed = 2,
                     .mode = Mode::client}},
          .target_batch = 256,
          .numbers = 100'000,
          .carried = 64};
}

TEST(SwarmSimulation, CountsWhatThePeersDo) {
  const auto report = simulate(small());
  EXPECT_GT(report.steps, 20);
  EXPECT_LT(report.last_loss, report.first_loss * .1);
  EXPECT_EQ(report.whole, report.averages);
  EXPECT_EQ(report.alone, 0);
  ASSERT_EQ(report.peers.size(), 8u);
  // Two of the eight are clients, and send their vector once a step. Each of the six others reduces
  // a sixth of it: it sends 5/6 of its own, and seven averages of a sixth.
  int64_t clients = 0, contributed = 0;
  const double vector = 4e5 * static_cast<double>(report.steps);
  for (const auto& peer : report.peers) {
    const bool is_client = peer.kind == "client";
    clients += is_client ? 1 : 0;
    contributed += peer.contributed;
    EXPECT_GT(peer.steps, report.steps - 2);
    EXPECT_NEAR(static_cast<double>(peer.sent) / vector, is_client ? 1 : 2, is_client ? .3 : .4);
  }
  EXPECT_EQ(clients, 2);
  EXPECT_NEAR(static_cast<double>(contributed), report.samples, 256);
  EXPECT_GT(report.samples, report.computed * .8);
}

TEST(SwarmSimulation, IsDeterministicBySeed) {
  auto scenario = small();
  scenario.seconds = 40;
  scenario.churn = {.joins = 240, .kills = 120, .stops = 120};
  const auto first = simulate(scenario), again = simulate(scenario);
  EXPECT_EQ(first.events, again.events);
  EXPECT_EQ(first.last_loss, again.last_loss);
  ++scenario.seed;
  EXPECT_NE(simulate(scenario).events, first.events);
}

TEST(SwarmSimulation, ALargerModelMakesStepsLonger) {
  auto scenario = small();
  scenario.seconds = 60;
  const auto steps = simulate(scenario).steps;
  scenario.numbers = 10'000'000;
  EXPECT_LT(simulate(scenario).steps, steps / 2);
}

TEST(SwarmSimulation, SurvivesChurn) {
  auto scenario = small();
  scenario.churn = {.joins = 180, .kills = 60, .stops = 60};
  const auto report = simulate(scenario);
  EXPECT_GT(report.peers.size(), 10u);
  EXPECT_GT(report.steps, 10);
  EXPECT_LT(report.last_loss, report.first_loss * .3);
  EXPECT_LT(report.longest_step, 30);
  int64_t downloads = 0;
  for (const auto& peer : report.peers) downloads += peer.downloads;
  EXPECT_GT(downloads, 2);
}

TEST(SwarmSimulation, ClippingWithstandsLiarsAndTheMeanDoesNot) {
  auto scenario = small();
  scenario.seconds = 80;
  scenario.kinds = {PeerKind{}};
  scenario.liars = .25;
  for (const auto lie : {SimulatedLie::scaled, SimulatedLie::constant}) {
    scenario.lies = {lie};
    scenario.aggregation = Aggregation::mean;
    EXPECT_FALSE(simulate(scenario).last_loss < .5) << name_of(lie);
    scenario.aggregation = Aggregation::centred_clip;
    EXPECT_LT(simulate(scenario).last_loss, .2) << name_of(lie);
  }
}

// An auxiliary peer has no weights, and so no loss.
TEST(SwarmSimulation, TheLossIsThatOfPeersThatTrain) {
  auto scenario = small();
  scenario.seconds = 60;
  scenario.kinds[1] = {.name = "auxiliary", .speed = 0, .mode = Mode::auxiliary};
  const auto report = simulate(scenario);
  EXPECT_LT(report.last_loss, report.first_loss * .1);
}

TEST(SwarmSimulation, RefusesTimesThatNoClockHas) {
  const std::vector<std::function<void(Scenario&)>> faults{
      [](Scenario& one) { one.seconds = 0; },
      [](Scenario& one) { one.seconds = 3.6e13; },
      [](Scenario& one) { one.bytes_per_number = 0; },
      [](Scenario& one) { one.kinds[0].speed = 0; },
      [](Scenario& one) { one.kinds[0].speed = 1e-300; },
      [](Scenario& one) { one.kinds[0].speed = 1e17; },
      [](Scenario& one) { one.kinds[0].latency = 1e17; },
      [](Scenario& one) { one.kinds[0].up = 1e-9; },
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    auto scenario = small();
    faults[i](scenario);
    EXPECT_THROW(simulate(scenario), Error) << i;
  }
}

TEST(SwarmSimulation, RefusesScenariosWithoutSense) {
  auto scenario = small();
  scenario.kinds.clear();
  EXPECT_ERROR(simulate(scenario), ErrorKind::usage,
               "[swarm] a simulated swarm; got 8 peers of 0 kinds, expected at least one of each");
  scenario = small();
  scenario.liars = .1;
  EXPECT_ERROR(simulate(scenario), ErrorKind::usage,
               "[swarm] the lies of liars; got none, expected at least one");
  EXPECT_ERROR(lie_from("truth"), ErrorKind::usage,
               "[swarm] a lie of simulated peers; got truth, expected sign_flip, scaled, constant, "
               "delayed, not_a_number or colluding");
}

}  // namespace
}  // namespace troika::swarm
