// Averages of groups without faults.
#include "troika/swarm/averaging.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/swarm/averaging_group.h"
#include "tests/swarm/coarse_packing.h"
#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/swarm/shares.h"

namespace troika::swarm {
namespace {

constexpr size_t kCount = 1003;

std::vector<SimulatedGroup::Values> random_values(size_t peers, size_t count, uint64_t seed,
                                                  double offset = 0) {
  Random random(seed);
  std::vector<SimulatedGroup::Values> all;
  for (size_t i = 0; i < peers; ++i) {
    all.push_back(std::make_shared<std::vector<double>>(count));
    for (auto& value : *all.back()) value = offset + random.normal();
  }
  return all;
}

std::vector<double> mean_of(const std::vector<SimulatedGroup::Values>& values,
                            const std::vector<double>& weights) {
  std::vector<double> mean(values[0]->size());
  double sum = 0;
  for (const double weight : weights) sum += weight;
  for (size_t k = 0; k < mean.size(); ++k) {
    for (size_t i = 0; i < values.size(); ++i) mean[k] += weights[i] * (*values[i])[k] / sum;
  }
  return mean;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t k = 0; k < a.size(); ++k) most = std::max(most, std::abs(a[k] - b[k]));
  return most;
}

// All groups of four with every mode.
TEST(Averaging, ModesGiveTheWeightedAverage) {
  for (int code = 0; code < 81; ++code) {
    SCOPED_TRACE(code);
    std::vector<Mode> modes;
    std::vector<std::optional<double>> rates;
    std::vector<double> weights;
    for (int i = 0, rest = code; i < 4; ++i, rest /= 3) {
      modes.push_back(static_cast<Mode>(rest % 3));
      rates.push_back(modes.back() == Mode::client ? 0 : 1 + i);
      weights.push_back(modes.back() == Mode::auxiliary ? 0 : 1 + i * i);
    }
    const auto none = [&](Mode a, Mode b) {
      return std::ranges::all_of(modes, [&](Mode m) { return m == a || m == b; });
    };
    if (none(Mode::client, Mode::client) || none(Mode::auxiliary, Mode::auxiliary)) continue;
    const auto parts = part_sizes(kCount, balanced_shares(rates).fractions, 0);
    SimulatedGroup group(modes, parts);
    const auto values = random_values(4, kCount, static_cast<uint64_t>(code));
    const auto mean = mean_of(values, weights);
    for (size_t i = 0; i < 4; ++i) group.begin(i, values[i], weights[i]);
    EXPECT_TRUE(group.results.empty());
    pass(group.network, 10);
    size_t first = 4;
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(group.results.contains(i)) << i;
      if (modes[i] == Mode::auxiliary) continue;
      EXPECT_TRUE(group.results[i].is_complete());
      EXPECT_LE(distance(*values[i], mean), 1e-12);
      if (first == 4) first = i;
      EXPECT_EQ(*values[i], *values[first]);  // the same bits
    }
  }
}

TEST(Averaging, APeerAloneKeepsItsValues) {
  SimulatedGroup group({Mode::node}, {kCount});
  const auto values = random_values(1, kCount, 1);
  const auto before = *values[0];
  group.begin(0, values[0], 3);
  EXPECT_TRUE(group.results.empty());
  pass(group.network, 1);
  EXPECT_TRUE(group.results.at(0).is_complete());
  EXPECT_LE(distance(*values[0], before), 1e-15);
}

TEST(Averaging, ValuesWithoutAnyWeightStay) {
  SimulatedGroup group({Mode::node, Mode::node}, {5, 5});
  const auto values = random_values(2, 10, 1);
  const auto before = *values[0];
  for (size_t i = 0; i < 2; ++i) group.begin(i, values[i], 0);
  pass(group.network, 1);
  EXPECT_FALSE(group.results.at(0).is_complete());
  EXPECT_EQ(*values[0], before);
}

// Each member may begin before the others know of the group.
TEST(Averaging, MembersBeginAtDifferentTimes) {
  SimulatedGroup group({Mode::node, Mode::node, Mode::client}, {500, 503, 0});
  const auto values = random_values(3, kCount, 2);
  const auto mean = mean_of(values, {1, 1, 1});
  for (size_t i = 0; i < 3; ++i) {
    group.begin(i, values[i], 1);
    pass(group.network, 5);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(group.results.at(i).is_complete());
    EXPECT_LE(distance(*values[i], mean), 1e-12);
  }
}

TEST(Averaging, BytesOfAPeerAreThoseOfTheFormula) {
  const std::vector<Mode> modes{Mode::node, Mode::node, Mode::node, Mode::client, Mode::auxiliary};
  const std::vector<size_t> parts{70'000, 20'000, 140'000, 0, 30'000};
  SimulatedGroup group(modes, parts);
  const size_t all = 260'000;
  const auto values = random_values(5, all, 3);
  for (size_t i = 0; i < 5; ++i) group.begin(i, values[i], 1);
  pass(group.network, 10);
  for (size_t i = 0; i < 5; ++i) {
    // A peer sends all but its own part, and its part to the other contributors; it gets as much.
    const bool contributes = modes[i] != Mode::auxiliary;
    const size_t others = contributes ? 3 : 4;
    const size_t numbers = (contributes ? all - parts[i] : 0) + others * parts[i];
    EXPECT_EQ(group.results.at(i).sent, numbers * sizeof(double)) << i;
    EXPECT_EQ(group.results.at(i).received, numbers * sizeof(double)) << i;
  }
}

// Whatever the parts are, if they have whole blocks.
TEST(Averaging, PackedAveragesHaveTheSameBitsEverywhere) {
  constexpr size_t kBlock = 50;
  AveragingOptions<double> options;
  options.packing = coarse_packing(kBlock);
  std::vector<double> first;
  for (const auto& parts :
       {std::vector<size_t>{300, 300, 403}, std::vector<size_t>{850, 50, 103}}) {
    SimulatedGroup group({Mode::node, Mode::node, Mode::node}, parts);
    const auto values = random_values(3, kCount, 4);
    const auto mean = mean_of(values, {1, 2, 3});
    double greatest = 0;
    for (const auto& one : values) {
      for (const double value : *one) greatest = std::max(greatest, std::abs(value));
    }
    for (size_t i = 0; i < 3; ++i) group.begin(i, values[i], static_cast<double>(i + 1), options);
    pass(group.network, 10);
    for (size_t i = 0; i < 3; ++i) {
      if (first.empty()) first = *values[i];
      EXPECT_EQ(*values[i], first);
      // Contributions are rounded, and then the average.
      EXPECT_LE(distance(*values[i], mean), 2 * kCoarseness * greatest * (1 + kCoarseness));
      EXPECT_GT(distance(*values[i], mean), kCoarseness / 10);
      size_t bytes = options.packing.bytes(0, parts[i]);
      for (const size_t part : parts) bytes += options.packing.bytes(0, part);
      EXPECT_EQ(group.results.at(i).sent, bytes);
      EXPECT_EQ(group.results.at(i).received, bytes);
    }
  }
}

TEST(Averaging, APeerAlonePacksNothing) {
  SimulatedGroup group({Mode::node}, {kCount});
  const auto values = random_values(1, kCount, 1);
  const auto before = *values[0];
  AveragingOptions<double> options;
  options.packing = coarse_packing(50);
  group.begin(0, values[0], 1, options);
  pass(group.network, 1);
  EXPECT_EQ(*values[0], before);
}

TEST(Averaging, WrongGroupsAreRefused) {
  SimulatedGroup group({Mode::node, Mode::client}, {5, 5});
  const auto begin = [&](std::vector<size_t> parts, double weight) {
    group.group.members[0].part = parts[0];
    group.group.members[1].part = parts[1];
    group.begin(0, std::make_shared<std::vector<double>>(10), weight);
  };
  const auto refuses = testing::ThrowsMessage<Error>(testing::HasSubstr("a group of an averaging"));
  EXPECT_THAT([&] { begin({5, 5}, 1); }, refuses);
  EXPECT_THAT([&] { begin({9, 0}, 1); }, refuses);
  EXPECT_THAT([&] { begin({10, 0}, -1); }, refuses);
  EXPECT_THAT([&] { begin({10, 0}, NAN); }, refuses);
  group.group.members[0].name = "another";
  EXPECT_THAT([&] { begin({10, 0}, 1); }, refuses);
}

}  // namespace
}  // namespace troika::swarm
