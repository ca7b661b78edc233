// Whole peers on a simulated network, without faults and with single ones.
#include "troika/swarm/peer.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/swarm/trainers.h"
#include "troika/base/error.h"

namespace troika::swarm {
namespace {

using testing::Each;
using testing::SizeIs;

// Compares the step with that of one process on the samples of all contributions.
void expect_big_batch(Trainers& run, size_t peers, const SwarmStep& step,
                      const std::vector<double>& values) {
  double sum = 0;
  std::vector<double> weights(peers);
  for (size_t i = 0; i < peers; ++i) {
    const auto& given = run.contributed[{step.epoch, i}];
    if (given.empty()) continue;
    weights[i] = *given.begin();
    sum += weights[i];
  }
  for (size_t k = 0; k < kNumbers; ++k) {
    const size_t place = k % kPlaces;
    ASSERT_NEAR(values[k], place < peers ? weights[place] / sum : 0, 1e-12) << step.epoch;
  }
}

TEST(Peers, AllAliveEqualTheBigBatch) {
  Trainers run(1);
  for (size_t i = 0; i < 8; ++i) {
    run.add(1 + static_cast<double>(i), {.bandwidth = 1e6 * (1 + static_cast<double>(i))});
  }
  int compared = 0;
  double batches = 0;
  run.checked = [&](size_t index, const SwarmStep& step, const std::vector<double>& values) {
    EXPECT_THAT(step.members, SizeIs(8));
    EXPECT_TRUE(step.averaging.is_complete());
    expect_big_batch(run, 8, step, values);
    if (index == 0) batches += step.averaging.weight;
    ++compared;
  };
  pass(run.network, 60);
  EXPECT_GE(compared, 8 * 20);
  for (const auto& trainer : run.all) {
    EXPECT_EQ(trainer->steps, trainer->peer->epoch());
    EXPECT_EQ(trainer->loads, 0);
    EXPECT_TRUE(trainer->steps != run.all[0]->steps || trainer->weights == run.all[0]->weights);
  }
  EXPECT_LE(batches / run.all[0]->steps, 64 * 1.2);
}

TEST(Peers, ALateJoinerHasTheBitsOfItsDonor) {
  Trainers run(2);
  for (size_t i = 0; i < 4; ++i) run.add(8);
  pass(run.network, 30);
  const auto epoch = run.all[0]->peer->epoch();
  EXPECT_GT(epoch, 8);
  auto& joiner = run.add(8);
  pass(run.network, 20);
  EXPECT_EQ(joiner.loads, 1);
  EXPECT_GT(joiner.steps, 5);
  EXPECT_GE(joiner.peer->epoch() - joiner.steps, epoch);
  for (const auto& trainer : run.all) {
    if (trainer->peer->epoch() != joiner.peer->epoch()) continue;
    EXPECT_EQ(trainer->peer->history(), joiner.peer->history());
    EXPECT_EQ(trainer->weights, joiner.weights);
  }
}

TEST(Peers, ClientsAndAuxiliaryPeersTakePart) {
  Trainers run(3);
  run.add(8);
  run.add(8, {.mode = Mode::client});
  run.add(0, {.mode = Mode::auxiliary});
  run.add(8, {.mode = Mode::client});
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>& values) {
    EXPECT_THAT(step.members, SizeIs(4));
    EXPECT_THAT(step.averaging.parts, SizeIs(2));
    expect_big_batch(run, 4, step, values);
  };
  pass(run.network, 30);
  for (const size_t i : {0, 1, 3}) {
    EXPECT_GT(run.all[i]->steps, 5) << i;
    EXPECT_EQ(run.all[i]->loads, 0) << i;
  }
  EXPECT_EQ(run.all[2]->steps, 0);
  EXPECT_GE(run.all[2]->peer->epoch(), run.all[0]->peer->epoch() - 1);
}

TEST(Peers, OnePeerTrainsAlone) {
  Trainers run(4);
  run.add(32);
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>& values) {
    expect_big_batch(run, 1, step, values);
  };
  pass(run.network, 30);
  EXPECT_GT(run.all[0]->steps, 10);
}

TEST(Peers, RestartsOfAllButOneLoseNoEpoch) {
  Trainers run(5);
  for (size_t i = 0; i < 4; ++i) run.add(16);
  pass(run.network, 20);
  const auto epoch = run.all[3]->peer->epoch();
  const auto weights = run.all[3]->weights;
  for (const size_t i : {0, 1, 2}) run.kill(i);
  for (size_t i = 0; i < 3; ++i) run.add(16);
  pass(run.network, 20);
  for (const size_t i : run.live()) {
    EXPECT_GT(run.all[i]->peer->epoch(), epoch + 5);
    EXPECT_EQ(run.all[i]->loads, i == 3 ? 0 : 1);
    for (size_t k = 0; k < kNumbers; ++k) ASSERT_LE(run.all[i]->weights[k], weights[k]);
  }
}

TEST(Peers, HalvesThatWereApartBecomeOneRun) {
  Trainers run(6);
  for (size_t i = 0; i < 6; ++i) run.add(i < 3 ? 12 : 8);
  pass(run.network, 10);
  const auto each_link = [&](const std::function<void(size_t, size_t)>& act) {
    for (size_t a = 0; a < 3; ++a) {
      for (size_t b = 3; b < 6; ++b) act(a, b);
    }
  };
  each_link([&](size_t a, size_t b) { run.cut(a, b); });
  pass(run.network, 60);
  EXPECT_GT(run.all[0]->peer->epoch(), run.all[5]->peer->epoch() + 3);
  EXPECT_NE(run.all[0]->weights, run.all[5]->weights);
  each_link([&](size_t a, size_t b) { run.connect(a, b); });
  pass(run.network, 30);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(run.all[i]->loads, i < 3 ? 0 : 1) << i;
    const auto& other = *run.all[0]->peer;
    EXPECT_LE(std::abs(run.all[i]->peer->epoch() - other.epoch()), 1) << i;
    if (run.all[i]->peer->epoch() != other.epoch()) continue;
    EXPECT_EQ(run.all[i]->peer->history(), other.history()) << i;
    EXPECT_EQ(run.all[i]->weights, run.all[0]->weights) << i;
  }
}

TEST(Peers, AnotherHistoryOfTheSameEpochIsGivenUp) {
  Trainers run(8, 1000);
  for (size_t i = 0; i < 3; ++i) run.add(8);
  auto& odd = run.add(8, {.version = {.history = "another"}});
  odd.weights[0] = 1;
  pass(run.network, 5);
  EXPECT_EQ(odd.loads, 1);
  EXPECT_EQ(odd.weights, run.all[0]->weights);
  EXPECT_EQ(odd.peer->history(), run.all[0]->peer->history());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(run.all[i]->loads, 0);
}

// Over slow links, averages end at different times, and the next batch may be complete before.
TEST(Peers, NoneRunsAheadAlone) {
  Trainers run(9, 2,
               {.least_latency = std::chrono::milliseconds(20),
                .most_latency = std::chrono::milliseconds(300)});
  for (size_t i = 0; i < 4; ++i) run.add(8);
  pass(run.network, 2);
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>&) {
    EXPECT_THAT(step.members, SizeIs(4)) << step.epoch;
  };
  pass(run.network, 40);
  for (const auto& trainer : run.all) {
    EXPECT_EQ(trainer->loads, 0);
    EXPECT_GT(trainer->steps, 15);
  }
}

// A donor whose link is busy with a state for a long time trains on.
TEST(Peers, ADownloadHoldsUpNoAveraging) {
  Trainers run(7, 8);
  // Short batches may be due before any peer has a sample.
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>&) {
    EXPECT_GT(step.averaging.weight, 0);
  };
  for (size_t i = 0; i < 3; ++i) run.add(8);
  pass(run.network, 10);
  run.add(1);
  const int before = run.all[0]->steps;
  int during = 0;
  for (int i = 0; i < 1000; ++i) {
    pass(run.network, .02);
    if (run.all[3]->loads == 0) during = run.all[0]->steps - before;
  }
  EXPECT_EQ(run.all[3]->loads, 1);
  EXPECT_GT(run.all[0]->steps - before, 20) << during;
}

// Rounds alone take no time, and tell nothing about those of a group.
TEST(Peers, RoundsAloneShortenNoTimeout) {
  Trainers run(10, 320, {.bytes_per_second = 4e3});
  run.add(16);
  pass(run.network, 100);
  run.add(16);
  int whole = 0, partial = 0;
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>&) {
    if (step.members.size() > 1) ++(step.averaging.is_complete() ? whole : partial);
  };
  pass(run.network, 200);
  EXPECT_GT(whole, 4);
  EXPECT_EQ(partial, 0);
}

// The state of the peer that is ahead is not waited for when that peer is gone.
TEST(Peers, ADownloadTurnsToThePeersThatAreLeft) {
  Trainers run(11, 1000, {.bytes_per_second = 20e3});
  run.add(8, {.version = {.epoch = 5, .history = "left"}});
  run.add(8, {.version = {.epoch = 50, .history = "gone"}});
  run.cut(0, 1);
  auto& peer = run.add(8);
  for (int i = 0; i < 1000 && !(peer.peer->is_downloading() && peer.peer->peers().size() == 3);
       ++i) {
    pass(run.network, .01);
  }
  ASSERT_TRUE(peer.peer->is_downloading());
  pass(run.network, .1);
  run.kill(1);
  pass(run.network, 10);
  EXPECT_EQ(peer.loads, 1);
  EXPECT_GE(peer.peer->epoch(), 5);
  EXPECT_LT(peer.peer->epoch(), 50);
}

// They neither add samples, nor lead.
TEST(Peers, OthersThatTrainSomethingElseCountForNobody) {
  for (const bool has_other_batch : {false, true}) {
    Trainers run(12);
    for (size_t i = 0; i < 3; ++i) run.add(8);
    PeerOptions<double> options{.version = {.epoch = 50, .history = "another"}};
    if (has_other_batch) {
      options.target_batch = 32;
    } else {
      options.schema = "another";
    }
    auto& stranger = run.add(800, options);
    run.checked = [&](size_t index, const SwarmStep& step, const std::vector<double>&) {
      EXPECT_THAT(step.members, SizeIs(index < 3 ? 3 : 1));
    };
    pass(run.network, 30);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(run.all[i]->loads, 0);
      EXPECT_GT(run.all[i]->steps, 5);
      EXPECT_LT(run.all[i]->steps, 20);
      EXPECT_THAT(run.all[i]->peer->peers(), SizeIs(3));
    }
    EXPECT_EQ(stranger.loads, 0);
  }
}

// A peer that was called, and then had to download a state, is due no more when the peers that
// were ahead are gone.
TEST(Peers, AContributionIsAwaitedOnlyWhileThePeerIsDue) {
  net::SimulatedNetwork network(1);
  const auto own = identity_of(1), other = identity_of(2);
  const auto add = [&](const Identity& identity, const StateVersion& version) {
    return std::make_unique<Peer<double>>(
        network.add(identity.name()), identity,
        PeerOptions<double>{.run = "run", .target_batch = 8, .version = version},
        PeerCallbacks<double>{
            .due = [](int64_t) {},
            .averaged = {},
            .state = []() -> std::shared_ptr<const std::string> { return nullptr; },
            .load = [](int64_t, const std::string&) {}},
        clock_of(network));
  };
  auto peer = add(own, {});
  pass(network, 4);
  peer->report(8);
  EXPECT_TRUE(peer->is_due());
  auto ahead = add(other, {.epoch = 5});
  network.connect(own.name(), other.name());
  pass(network, 2);
  EXPECT_TRUE(peer->is_downloading());
  EXPECT_FALSE(peer->is_due());
  peer->contribute(0, std::make_shared<std::vector<double>>(1), 8);
  EXPECT_FALSE(peer->is_averaging());
  network.cut(own.name(), other.name());
  pass(network, 1);
  EXPECT_FALSE(peer->is_downloading());
  EXPECT_TRUE(peer->is_due());
  peer->contribute(0, std::make_shared<std::vector<double>>(1), 8);
  pass(network, 1);
  EXPECT_EQ(peer->epoch(), 1);
}

TEST(Timeouts, AreRaisedAndFallAgain) {
  AdaptiveTimeout timeout(std::chrono::seconds(2), std::chrono::seconds(30));
  EXPECT_EQ(timeout.limit(), std::chrono::seconds(30));
  timeout.add(std::chrono::seconds(1));
  EXPECT_EQ(timeout.limit(), std::chrono::seconds(2));
  timeout.raise();
  EXPECT_EQ(timeout.limit(), std::chrono::seconds(4));
  timeout.raise();
  EXPECT_EQ(timeout.limit(), std::chrono::seconds(8));
  timeout.add(std::chrono::seconds(1));
  EXPECT_EQ(timeout.limit(), std::chrono::seconds(7));
  for (int i = 0; i < 20; ++i) timeout.add(std::chrono::seconds(1));
  EXPECT_EQ(timeout.limit(), std::chrono::seconds(2));
}

TEST(Peers, WrongUsesAreRefused) {
  net::SimulatedNetwork network(1);
  const auto identity = identity_of(1);
  const PeerCallbacks<double> callbacks{.due = [](int64_t) {},
                                        .averaged = {},
                                        .state = [] { return nullptr; },
                                        .load = [](int64_t, const std::string&) {}};
  auto& endpoint = network.add(identity.name());
  const auto make = [&](net::Endpoint& at, PeerOptions<double> options,
                        const PeerCallbacks<double>& calls) {
    options.run = "run";
    return std::make_unique<Peer<double>>(at, identity, options, calls, clock_of(network));
  };
  EXPECT_THROW(make(network.add("other"), {}, callbacks), Error);
  EXPECT_THROW(make(endpoint, {.target_batch = 0}, callbacks), Error);
  for (const double bandwidth : {-1., 0., double{INFINITY}, double{NAN}}) {
    EXPECT_THROW(make(endpoint, {.bandwidth = bandwidth}, callbacks), Error) << bandwidth;
  }
  for (const int missing : {0, 1, 2}) {
    auto some = callbacks;
    if (missing == 0) some.due = {};
    if (missing == 1) some.state = {};
    if (missing == 2) some.load = {};
    EXPECT_THROW(make(endpoint, {}, some), Error) << missing;
  }
  EXPECT_NO_THROW(make(endpoint, {.mode = Mode::auxiliary}, {}));
  const auto peer = make(endpoint, {}, callbacks);
  EXPECT_THROW(peer->contribute(0, nullptr, 1), Error);
  EXPECT_THROW(peer->contribute(0, std::make_shared<std::vector<double>>(1), NAN), Error);
}

}  // namespace
}  // namespace troika::swarm
