// Peers that pause, and what peers tell people.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/swarm/averaging_group.h"
#include "tests/swarm/trainers.h"
#include "troika/base/error.h"
#include "troika/swarm/gathered.h"
#include "troika/swarm/peer_report.h"

namespace troika::swarm {
namespace {

using testing::Contains;
using testing::Each;
using testing::Not;
using testing::SizeIs;

TEST(Pauses, LeaveThePeerWithTheStateOfTheOthers) {
  Trainers run(21);
  for (size_t i = 0; i < 4; ++i) run.add(8);
  pass(run.network, 20);
  run.pause(3, true);
  // The step that has samples of it ends first.
  pass(run.network, 5);
  const auto begin = run.all[3]->peer->epoch();
  const auto traffic = run.all[3]->metered->traffic();
  const auto of_another = run.all[0]->metered->traffic();
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>& values) {
    if (step.epoch < begin) return;
    EXPECT_THAT(step.members, SizeIs(4));
    EXPECT_TRUE(step.averaging.is_complete());
    EXPECT_EQ(values[3], 0);  // its place
    EXPECT_GT(values[2], 0);
    for (const auto& part : step.averaging.parts) {
      EXPECT_NE(part.reducer, run.all[3]->identity->name());
    }
  };
  pass(run.network, 40);
  const auto& paused = *run.all[3];
  EXPECT_GT(paused.peer->epoch(), begin + 8);
  EXPECT_EQ(paused.loads, 0);
  EXPECT_EQ(paused.steps, paused.peer->epoch());
  for (const auto& peer : run.all[0]->peer->peers()) {
    const bool is_it = peer.peer == paused.identity->name();
    EXPECT_EQ(peer.is_paused, is_it);
    EXPECT_EQ(peer.samples_per_second == 0, is_it);
  }
  // It sends records and requests, and no gradients.
  const auto sent = paused.metered->traffic().sent - traffic.sent;
  EXPECT_LT(5 * sent, run.all[0]->metered->traffic().sent - of_another.sent);
  run.checked = {};
  run.pause(3, false);
  pass(run.network, 20);
  EXPECT_EQ(paused.loads, 0);
  const auto epoch = paused.peer->epoch();
  EXPECT_EQ(paused.peer->history(), run.all[0]->peer->history());
  EXPECT_EQ(paused.weights, run.all[0]->weights);
  EXPECT_THAT((run.contributed[{epoch - 1, 3}]), Not(Contains(0)));
}

// A step needs samples. Afterwards it is as if there had been no pause.
TEST(Pauses, OfAllPeersEndNoStep) {
  Trainers run(22);
  for (size_t i = 0; i < 3; ++i) run.add(8);
  pass(run.network, 20);
  for (size_t i = 0; i < 3; ++i) run.pause(i, true);
  pass(run.network, 10);
  const auto epoch = run.all[0]->peer->epoch();
  pass(run.network, 60);
  for (const auto& trainer : run.all) EXPECT_EQ(trainer->peer->epoch(), epoch);
  for (size_t i = 0; i < 3; ++i) run.pause(i, false);
  pass(run.network, 20);
  for (const auto& trainer : run.all) {
    EXPECT_GT(trainer->peer->epoch(), epoch + 3);
    EXPECT_EQ(trainer->loads, 0);
  }
}

// The only peer that computes cannot reduce: those that pause do.
TEST(Pauses, OfAllNodesLeaveClientsTheirSteps) {
  Trainers run(23);
  for (size_t i = 0; i < 2; ++i) run.add(8);
  auto& client = run.add(32, {.mode = Mode::client});
  pass(run.network, 20);
  for (size_t i = 0; i < 2; ++i) run.pause(i, true);
  pass(run.network, 10);
  const int before = client.steps;
  run.checked = [](size_t, const SwarmStep& step, const std::vector<double>&) {
    EXPECT_THAT(step.members, SizeIs(3));
    EXPECT_TRUE(step.averaging.is_complete());
  };
  pass(run.network, 30);
  EXPECT_GT(client.steps, before + 5);
  for (const auto& trainer : run.all) EXPECT_EQ(trainer->loads, 0);
}

// Contributions of weight 0 need no numbers, also where differences travel.
TEST(Abstentions, TravelWithoutNumbersAndGetTheAverage) {
  for (const bool packs : {false, true}) {
    for (const auto aggregation : {Aggregation::mean, Aggregation::centred_clip}) {
      SimulatedGroup group({Mode::node, Mode::node, Mode::node}, {500, 0, 500});
      AveragingOptions<double> options{.aggregation = aggregation};
      if (packs) {
        options.packing = {.bytes = [](size_t, size_t count) { return sizeof(double) * count; },
                           .pack =
                               [](size_t, std::span<const double> numbers, std::span<char> bytes) {
                                 std::memcpy(bytes.data(), numbers.data(), numbers.size_bytes());
                               },
                           .unpack =
                               [](size_t, std::span<const char> bytes, std::span<double> numbers) {
                                 std::memcpy(numbers.data(), bytes.data(), bytes.size());
                               }};
      }
      std::vector<SimulatedGroup::Values> values;
      const bool is_mean = aggregation == Aggregation::mean;
      for (const double value : {is_mean ? 2 : 3, 1000, is_mean ? 4 : 3}) {
        values.push_back(std::make_shared<std::vector<double>>(1000, value));
      }
      for (size_t i = 0; i < 3; ++i) group.begin(i, values[i], i == 1 ? 0 : 1, options);
      pass(group.network, 10);
      ASSERT_THAT(group.results, SizeIs(3));
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(group.results[i].is_complete());
        EXPECT_EQ(group.results[i].weight, 2);
        EXPECT_THAT(*values[i], Each(testing::DoubleEq(3))) << i;
      }
      EXPECT_EQ(group.results[1].sent, 0U);
      EXPECT_EQ(group.results[1].received, 8000U);
    }
  }
}

TEST(Reports, ComeAsTheyWereTold) {
  const PeerReport report{.version = "1.2.3",
                          .steps = 7,
                          .samples = 500,
                          .loss = .25,
                          .loss_samples = 64,
                          .sent = 1,
                          .received = uint64_t{1} << 60};
  EXPECT_EQ(report_from(text_of(report)), report);
  auto other = report;
  other.loss = NAN;
  EXPECT_EQ(report_from(text_of(other)).loss, std::nullopt);
  const auto is_valid = [](const PeerReport& one) { return is_report({.body = text_of(one)}); };
  EXPECT_TRUE(is_valid(report));
  EXPECT_TRUE(is_valid({}));
  for (const auto& change : std::vector<std::function<void(PeerReport&)>>{
           [](PeerReport& one) { one.version = std::string(65, 'v'); },
           [](PeerReport& one) { one.steps = -1; }, [](PeerReport& one) { one.samples = -1; },
           [](PeerReport& one) { one.samples = INFINITY; },
           [](PeerReport& one) { one.loss_samples = -1; }}) {
    auto wrong = report;
    change(wrong);
    EXPECT_FALSE(is_valid(wrong));
  }
  EXPECT_FALSE(is_report({.body = "{}"}));
  EXPECT_FALSE(is_report({.body = "x"}));
}

}  // namespace
}  // namespace troika::swarm
