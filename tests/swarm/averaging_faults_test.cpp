// Averages of groups that lose members.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "tests/swarm/averaging_group.h"
#include "troika/base/random.h"
#include "troika/swarm/averaging_wire.h"
#include "troika/swarm/part_reducer.h"

namespace troika::swarm {
namespace {

using testing::Contains;
using testing::Key;

constexpr size_t kChunk = 65'536;  // numbers
constexpr size_t kPeers = 5;       // the last one is a client, and the first or it is lost
const std::vector<size_t> kParts{2 * kChunk, 2 * kChunk, 2 * kChunk + 100, 2 * kChunk, 0};
constexpr size_t kNumbersOfAll = 8 * kChunk + 100;
const net::SimulatedLinks kLinks{.bytes_per_second = 100e6};

// All numbers of a peer's vector are the same, so that sets of peers have different averages.
double value_of(size_t peer) {
  return std::pow(2, peer);
}
double weight_of(size_t peer) {
  return static_cast<double>(peer + 1);
}
double average_of(const std::set<size_t>& peers) {
  double sum = 0, weight = 0;
  for (const size_t peer : peers) {
    sum += weight_of(peer) * value_of(peer);
    weight += weight_of(peer);
  }
  return sum / weight;
}

class Faults {
 public:
  Faults() : group({Mode::node, Mode::node, Mode::node, Mode::node, Mode::client}, kParts, kLinks) {
    for (size_t i = 0; i < kPeers; ++i) {
      values.push_back(std::make_shared<std::vector<double>>(kNumbersOfAll, value_of(i)));
    }
  }
  void begin(size_t peer) {
    group.begin(peer, values[peer], weight_of(peer), {.sender_timeout = seconds(1)});
  }
  // Counts the numbers of `peer` that have the average of all, that of all but `lost`, and their
  // own value. All others fail.
  void count(size_t peer, size_t lost) {
    std::set<size_t> all;
    for (size_t i = 0; i < kPeers; ++i) all.insert(i);
    auto rest = all;
    rest.erase(lost);
    const auto count_of = [&](double value) {
      return static_cast<size_t>(std::ranges::count(*values[peer], value));
    };
    of_all = count_of(average_of(all));
    of_rest = count_of(average_of(rest));
    own = count_of(value_of(peer));
    EXPECT_EQ(of_all + of_rest + own, kNumbersOfAll) << peer;
  }

  SimulatedGroup group;
  std::vector<SimulatedGroup::Values> values;
  size_t of_all = 0, of_rest = 0, own = 0;
};

enum class Fault { before_start, while_sending, while_reducing, silent, cancelled };

class AveragingFaults : public testing::TestWithParam<std::tuple<Fault, size_t>> {};

TEST_P(AveragingFaults, LeaveTheRestExact) {
  const auto [fault, lost] = GetParam();
  Faults run;
  for (size_t i = 0; i < kPeers; ++i) {
    if (i != lost || fault != Fault::before_start) run.begin(i);
  }
  // Two chunks of 512 KiB take 10 ms.
  pass(run.group.network, fault == Fault::before_start     ? .0005
                          : fault == Fault::while_reducing ? .0085
                                                           : .004);
  if (fault == Fault::silent) {
    run.group.network.stop(run.group.group.members[lost].name);
  } else if (fault == Fault::cancelled) {
    run.group.averagers[lost]->cancel(run.group.group.id);
    EXPECT_TRUE(run.group.results.at(lost).is_cancelled);
    run.count(lost, lost);
  } else {
    run.group.kill(lost);
  }
  pass(run.group.network, 1);
  const bool is_told = fault != Fault::silent;
  EXPECT_EQ(run.group.results.contains(1), is_told);
  pass(run.group.network, 4);
  const size_t lost_part = kParts[lost];
  for (size_t i = 0; i < kPeers; ++i) {
    if (i == lost) continue;
    ASSERT_TRUE(run.group.results.contains(i)) << i;
    run.count(i, lost);
    EXPECT_GT(run.of_all + run.of_rest, kNumbersOfAll / 2) << i;
    EXPECT_EQ(run.group.results[i].is_complete(), run.own == 0) << i;
    if (fault == Fault::before_start) {
      EXPECT_EQ(run.own, lost_part) << i;
      EXPECT_EQ(run.of_all, 0u) << i;
    }
    if (i < 4 && fault != Fault::while_reducing) {
      EXPECT_THAT(run.group.results[i].excluded, Contains(Key(run.group.group.members[lost].name)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AveragingFaults,
                         testing::Combine(testing::Values(Fault::before_start, Fault::while_sending,
                                                          Fault::while_reducing, Fault::silent,
                                                          Fault::cancelled),
                                          testing::Values(0, 4)));

// A peer that comes too late for its group does not hold up the others, and learns it.
TEST(Averaging, LateMembersAreLeftOut) {
  Faults run;
  for (size_t i = 1; i < kPeers; ++i) run.begin(i);
  pass(run.group.network, 5);
  EXPECT_TRUE(run.group.results.contains(1));
  run.begin(0);
  pass(run.group.network, .1);
  EXPECT_TRUE(run.group.results.contains(0));
  run.count(1, 0);
  EXPECT_EQ(run.of_rest, kNumbersOfAll - kParts[0]);
  run.count(0, 0);
  EXPECT_EQ(run.own, kNumbersOfAll);
}

TEST(Averaging, MembersWithNumbersThatAreNotFiniteAreLeftOut) {
  Faults run;
  run.values[1]->back() = NAN;               // in the part of member 3
  (*run.values[1])[3 * kChunk] = -INFINITY;  // in its own
  for (size_t i = 0; i < kPeers; ++i) run.begin(i);
  pass(run.group.network, 5);
  for (const size_t i : {0, 2, 3, 4}) {
    run.count(i, 1);
    EXPECT_EQ(run.own, 0u);
    EXPECT_GE(run.of_rest, kChunk);
    EXPECT_TRUE(run.group.results.at(i).is_complete());
  }
  EXPECT_FALSE(run.group.results.at(1).is_complete());
  EXPECT_THAT(run.group.results.at(3).excluded, Contains(Key("b")));
}

TEST(Averaging, RandomMessagesCrashNothing) {
  Random random(1);
  for (int trial = 0; trial < 40; ++trial) {
    SimulatedGroup group({Mode::node, Mode::node, Mode::node}, {100, 100, 100});
    for (size_t i = 0; i < 3; ++i) {
      group.begin(i, std::make_shared<std::vector<double>>(300, value_of(i)), 1,
                  {.sender_timeout = seconds(1)});
    }
    for (int message = 0; message < 30; ++message) {
      auto text = encoded({.kind = static_cast<AveragingHead::Kind>(random.below(5)),
                           .group = random.below(3) == 0 ? random() : 17,
                           .first = random.below(2) == 0 ? 100 * random.below(3) : random(),
                           .count = random.below(2) == 0 ? 100 : random(),
                           .weight = random.uniform(-1, 2)});
      text.resize(random.below(2) == 0 ? text.size() + 800 : random.below(900));
      for (int change = 0; change < 3 && !text.empty(); ++change) {
        if (random.below(2) == 0) text[random.below(text.size())] = static_cast<char>(random());
      }
      net::send_owned(*group.endpoints[2], std::string(1, static_cast<char>('a' + random.below(2))),
                      kAveraging, std::make_shared<const std::string>(text));
      pass(group.network, .0001);
    }
    pass(group.network, 5);
    EXPECT_THAT(group.results, testing::SizeIs(3));
  }
}

}  // namespace
}  // namespace troika::swarm
