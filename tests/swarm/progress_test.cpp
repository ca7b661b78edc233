// Batches that simulated peers of unequal speed gather together.
#include "troika/swarm/progress.h"

#include <gmock/gmock.h>

#include "tests/swarm/simulated_swarm.h"
#include "troika/base/random.h"
#include "troika/swarm/gossip.h"

namespace troika::swarm {
namespace {

using namespace std::chrono_literals;

class Progress {
 public:
  // The clock of the last peer differs from the others' by `skew`.
  Progress(size_t peers, const ProgressOptions& options, WallTime skew = {}) {
    for (size_t i = 0; i < peers; ++i) {
      identities.push_back(std::make_unique<Identity>(identity_of(i)));
      endpoints.push_back(&network.add(identities[i]->name()));
      directories.push_back(std::make_unique<GossipDirectory>(
          *endpoints[i], *identities[i],
          RecordRules{.run = "run", .kinds = {{kProgress, is_progress}}},
          clock_of(network, i + 1 == peers ? skew : WallTime(0))));
      endpoints[i]->listen_to_peers([directory = directories[i].get()](const net::PeerChange& c) {
        directory->take_change(c);
      });
      trackers.push_back(
          std::make_unique<ProgressTracker>(*endpoints[i], *directories[i], options));
      for (size_t j = 0; j < i; ++j) network.connect(endpoints[j]->name(), endpoints[i]->name());
      directories[i]->watch(
          [tracker = trackers[i].get()](const Record& record) { tracker->take_change(record); });
      trackers[i]->begin_epoch(0, "", false);
    }
  }

  net::SimulatedNetwork network{1};
  std::vector<std::unique_ptr<Identity>> identities;
  std::vector<net::Endpoint*> endpoints;
  std::vector<std::unique_ptr<GossipDirectory>> directories;
  std::vector<std::unique_ptr<ProgressTracker>> trackers;
};

TEST(Progress, SamplesThatAreAheadCountForTheNextEpoch) {
  Progress swarm(1, {.target_batch = 64, .overlaps = true});
  auto& tracker = *swarm.trackers[0];
  tracker.report(1);
  // Time goes on when an epoch begins: 2 samples a second.
  for (int i = 0; i < 3; ++i) {
    pass(swarm.network, .5);
    tracker.begin_epoch(tracker.epoch() + 1, "", false);
    pass(swarm.network, .5);
    tracker.report(2, /*is_ahead=*/true);
    EXPECT_EQ(tracker.samples(), i == 0 ? 0 : 2);
    EXPECT_DOUBLE_EQ(tracker.peers().front().samples_per_second, 2);
  }
  tracker.count_ahead();
  EXPECT_EQ(tracker.samples(), 4);
  tracker.report(2, /*is_ahead=*/true);
  tracker.drop_ahead();
  tracker.begin_epoch(9, "", false);
  EXPECT_EQ(tracker.samples(), 0);
}

// Peer i takes a micro-batch of i + 1 samples in a random time around (1 + 2 i) / 10 seconds.
TEST(Progress, UnequalPeersOvershootTheTargetByAFifthAtMost) {
  constexpr int64_t kTarget = 512;
  Progress swarm(8, {.target_batch = kTarget});
  Random random(1);
  std::vector<double> next(8);
  std::vector<int64_t> batches;  // by epoch
  while (swarm.network.now() < 300s) {
    for (size_t i = 0; i < 8; ++i) {
      const double now = std::chrono::duration<double>(swarm.network.now()).count();
      auto& tracker = *swarm.trackers[i];
      if (now < next[i]) continue;
      if (next[i] > 0) tracker.report(static_cast<int64_t>(i) + 1);
      next[i] = now + (1 + 2 * static_cast<double>(i)) / 10 * random.uniform(.5, 1.5);
      if (!tracker.is_due()) continue;
      const auto epoch = static_cast<size_t>(tracker.epoch());
      if (batches.size() <= epoch) batches.resize(epoch + 1);
      batches[epoch] += tracker.samples();
      tracker.begin_epoch(tracker.epoch() + 1, "", false);
    }
    pass(swarm.network, .02);
  }
  ASSERT_GT(batches.size(), 10u);
  double sum = 0;
  for (size_t epoch = 0; epoch + 2 < batches.size(); ++epoch) {
    EXPECT_GE(batches[epoch], kTarget * .95) << epoch;
    EXPECT_LE(batches[epoch], kTarget * 1.2) << epoch;
    sum += static_cast<double>(batches[epoch]);
  }
  EXPECT_LE(sum / static_cast<double>(batches.size() - 2), kTarget * 1.1);
}

TEST(Progress, TheEpochIsTheGreatestOfPeersThatAreNoClients) {
  Progress swarm(3, {.target_batch = 100});
  pass(swarm.network, .1);
  EXPECT_FALSE(swarm.trackers[0]->is_due());
  swarm.trackers[1]->begin_epoch(4, "history", false);
  pass(swarm.network, .1);
  EXPECT_EQ(swarm.trackers[0]->swarm().epoch, 4);
  EXPECT_EQ(swarm.trackers[0]->swarm().peers, 1);
  EXPECT_TRUE(swarm.trackers[0]->is_due());
  EXPECT_FALSE(swarm.trackers[1]->is_due());
}

TEST(Progress, ClientsDoNotDefineTheEpoch) {
  net::SimulatedNetwork network(1);
  const auto identity = identity_of(0);
  auto& endpoint = network.add(identity.name());
  const RecordRules rules{.run = "run", .kinds = {{kProgress, is_progress}}};
  GossipDirectory directory(endpoint, identity, rules, clock_of(network));
  ProgressTracker tracker(endpoint, directory, {.target_batch = 100});
  tracker.begin_epoch(1, "", false);
  const auto client = identity_of(1);
  auto& other = network.add(client.name());
  GossipDirectory others(other, client, rules, clock_of(network));
  ProgressTracker theirs(other, others, {.target_batch = 100, .is_client = true});
  directory.watch([&](const Record& record) { tracker.take_change(record); });
  endpoint.listen_to_peers([&](const net::PeerChange& c) { directory.take_change(c); });
  other.listen_to_peers([&](const net::PeerChange& c) { others.take_change(c); });
  network.connect(endpoint.name(), other.name());
  theirs.begin_epoch(7, "", false);
  pass(network, .1);
  EXPECT_EQ(tracker.swarm().epoch, 1);
  EXPECT_EQ(tracker.peers().size(), 2u);
}

TEST(Progress, SilentPeersCountNoMore) {
  Progress swarm(2, {.target_batch = 1000});
  for (int i = 0; i < 50; ++i) {
    swarm.trackers[0]->report(10);
    pass(swarm.network, .1);
  }
  EXPECT_NEAR(swarm.trackers[1]->swarm().samples, 500, 60);
  EXPECT_NEAR(swarm.trackers[1]->swarm().samples_per_second, 100, 15);
  swarm.network.stop(swarm.endpoints[0]->name());
  pass(swarm.network, 31);
  EXPECT_EQ(swarm.trackers[1]->swarm().peers, 1);
  EXPECT_EQ(swarm.trackers[1]->swarm().samples, 0);
}

TEST(Progress, PeersOfALargeSwarmTellTheirsLessOften) {
  for (const double most : {1000., 2.}) {
    Progress swarm(6, {.target_batch = 1, .records_per_second = most});
    pass(swarm.network, .1);
    for (const auto& tracker : swarm.trackers) tracker->report(1);
    int records = 0;
    swarm.directories[0]->watch([&](const Record& record) {
      swarm.trackers[0]->take_change(record);
      ++records;
    });
    pass(swarm.network, 5);  // their next records come
    records = 0;
    pass(swarm.network, 20);
    // The batch is complete: one each 0.5 s, or each 5 / 2 s.
    EXPECT_NEAR(records, most > 2 ? 6 * 40 : 6 * 8, 18) << most;
  }
}

// Within the skew that records may have.
TEST(Progress, APeerWhoseClockIsBehindIsAlive) {
  for (const auto skew : {-2900ms, 2900ms}) {
    Progress swarm(2, {.target_batch = 1000, .default_refresh = 500ms, .most_refresh = 500ms},
                   skew);
    for (int i = 0; i < 50; ++i) {
      pass(swarm.network, .1);
      for (const auto& tracker : swarm.trackers) {
        EXPECT_EQ(tracker->peers().size(), 2u) << i;
      }
    }
  }
}

TEST(Progress, RatesForgetAndHaveNoBias) {
  SampleRate rate;
  EXPECT_EQ(rate.samples_per_second(), 0);
  net::Duration now{};
  rate.resume(now);
  for (int i = 0; i < 5; ++i) rate.report(4, now += 2s);
  EXPECT_NEAR(rate.samples_per_second(), 2, 1e-9);
  for (int i = 0; i < 60; ++i) rate.report(4, now += 1s);
  EXPECT_NEAR(rate.samples_per_second(), 4, .02);
}

}  // namespace
}  // namespace troika::swarm
