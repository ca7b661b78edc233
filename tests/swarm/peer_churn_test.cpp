// Peers that are killed, stopped and added every few seconds.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/swarm/trainers.h"

namespace troika::swarm {
namespace {

struct ChurnResult {
  std::vector<int64_t> epochs;  // of the peers at the end
  std::vector<std::vector<double>> weights;
  int steps = 0, whole = 0, groups = 0;
  net::Duration longest{};  // between two steps of any peer

  bool operator==(const ChurnResult&) const = default;
};

// Each part of the average must be that of a set of contributions: w / (sum of w of the set) at the
// places of its members.
void expect_averages_of_sets(Trainers& run, const SwarmStep& step,
                             const std::vector<double>& values) {
  for (const auto& part : step.averaging.parts) {
    if (part.averaged < part.count || part.count < kPlaces) continue;
    double all = 0, sum = 0;  // the sum of weights, if it is known
    for (size_t k = part.first; k < part.first + kPlaces; ++k) {
      if (values[k] == 0) continue;
      const auto& weights = run.contributed[{step.epoch, k % kPlaces}];
      ASSERT_FALSE(weights.empty()) << "peer " << k % kPlaces << " did not contribute";
      all += values[k];
      // A peer that came to the epoch again has several.
      if (weights.size() > 1) continue;
      if (sum == 0) sum = *weights.begin() / values[k];
      ASSERT_NEAR(*weights.begin() / sum, values[k], 1e-12);
    }
    ASSERT_NEAR(all, 1, 1e-12);
  }
}

ChurnResult churn(uint64_t seed, double duration) {
  Trainers run(seed, 64, {.bytes_per_second = 50e3});
  ChurnResult result;
  net::Duration last{};
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>& values) {
    ++result.steps;
    result.whole += step.averaging.is_complete();
    result.groups += step.members.size() > 1;
    expect_averages_of_sets(run, step, values);
    result.longest = std::max(result.longest, run.network.now() - last);
    last = run.network.now();
  };
  for (size_t i = 0; i < 8; ++i) run.add(4 + static_cast<double>(i % 4));
  Random random(seed);
  for (double time = 0; time < duration; time += 5) {
    pass(run.network, 5);
    const auto live = run.live();
    if (live.size() < 8 && (live.size() < 5 || random.below(2) == 0)) {
      run.add(4 + random.uniform() * 4);
    } else if (random.below(2) == 0) {
      run.kill(live[random.below(live.size())]);
    } else {
      run.stop(live[random.below(live.size())]);
    }
  }
  pass(run.network, 40);
  for (const size_t i : run.live()) {
    result.epochs.push_back(run.all[i]->peer->epoch());
    result.weights.push_back(run.all[i]->weights);
  }
  return result;
}

TEST(Churn, EightPeersTrainOnForTenMinutes) {
  const auto result = churn(1, 600);
  EXPECT_GT(result.epochs.size(), 3u);
  for (const auto epoch : result.epochs) EXPECT_GE(epoch, result.epochs[0] - 1);
  EXPECT_GT(result.epochs[0], 120);
  EXPECT_GT(result.groups, result.steps * .95);
  EXPECT_GT(result.whole, result.steps * .95);
  EXPECT_LT(result.longest, seconds(20));
  for (size_t i = 0; i < result.epochs.size(); ++i) {
    EXPECT_TRUE(result.epochs[i] != result.epochs[0] || result.weights[i] == result.weights[0]);
  }
}

TEST(Churn, IsDeterministic) {
  EXPECT_EQ(churn(2, 30), churn(2, 30));
}

}  // namespace
}  // namespace troika::swarm
