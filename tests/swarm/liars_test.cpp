// Means of vectors of which some are lies.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/swarm/averaging_group.h"
#include "troika/base/random.h"
#include "troika/swarm/centred_clip.h"
#include "troika/swarm/far_contributors.h"

namespace troika::swarm {
namespace {

constexpr size_t kPeersOfLies = 10;
constexpr size_t kLiars = 2;
constexpr size_t kDimension = 64;

enum class Lie { none, sign_flipped, scaled, constant, colluding, small_bias, heavy };

// Replaces a gradient and its weight by those that a liar contributes.
void lie(Lie kind, std::vector<double>& gradient, double& weight, Random& random) {
  for (size_t k = 0; k < gradient.size(); ++k) {
    switch (kind) {
      case Lie::none:
        break;
      case Lie::sign_flipped:
        gradient[k] *= -10;
        break;
      case Lie::scaled:
        gradient[k] *= 1000;
        break;
      case Lie::constant:
        gradient[k] = 100;
        break;
      case Lie::colluding:
        gradient[k] = k % 2 == 0 ? 1e6 : -1e6;
        break;
      case Lie::small_bias:
        gradient[k] += 3 * random.normal();
        break;
      case Lie::heavy:
        gradient[k] *= -2;
        weight = 1e9;
        break;
    }
  }
}

// The loss |x|^2 / 2 after steps with noisy gradients of ten peers; of them, two lie.
double loss_after(Lie kind, Aggregation aggregation, int steps = 150) {
  Random random(1);
  std::vector<double> x(kDimension, 1);
  for (int step = 0; step < steps; ++step) {
    SimulatedGroup group(std::vector<Mode>(kPeersOfLies, Mode::node),
                         {64, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {}, static_cast<uint64_t>(step));
    std::vector<SimulatedGroup::Values> gradients;
    for (size_t i = 0; i < kPeersOfLies; ++i) {
      double weight = 1;
      gradients.push_back(std::make_shared<std::vector<double>>(x));
      for (auto& value : *gradients.back()) value += .3 * random.normal();
      if (i >= kPeersOfLies - kLiars) lie(kind, *gradients.back(), weight, random);
      group.begin(i, gradients.back(), weight, {.aggregation = aggregation});
    }
    pass(group.network, 1);
    for (size_t i = 1; i < kPeersOfLies; ++i) EXPECT_EQ(*gradients[i], *gradients[0]);
    for (size_t k = 0; k < kDimension; ++k) x[k] -= .1 * (*gradients[0])[k];
  }
  double loss = 0;
  for (const double value : x) loss += value * value / 2;
  return loss;
}

TEST(Liars, DoNotHoldUpARunWithCentredClipping) {
  const double clean = loss_after(Lie::none, Aggregation::mean);
  EXPECT_LT(clean, .1);
  EXPECT_LT(loss_after(Lie::none, Aggregation::centred_clip), .1);
  // The loss began with 32. Far liars hold the centre off by a fourth of the noise.
  for (const Lie kind : {Lie::sign_flipped, Lie::scaled, Lie::small_bias, Lie::heavy}) {
    EXPECT_LT(loss_after(kind, Aggregation::centred_clip), .05) << static_cast<int>(kind);
  }
  for (const Lie kind : {Lie::constant, Lie::colluding}) {
    EXPECT_LT(loss_after(kind, Aggregation::centred_clip), .4) << static_cast<int>(kind);
  }
  for (const Lie kind :
       {Lie::sign_flipped, Lie::scaled, Lie::constant, Lie::colluding, Lie::heavy}) {
    EXPECT_FALSE(loss_after(kind, Aggregation::mean) < 32) << static_cast<int>(kind);
  }
}

TEST(Liars, MoveACentreByTheBound) {
  Random random(2);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<std::vector<double>> vectors(kPeersOfLies, std::vector<double>(kDimension));
    std::vector<double> mean(kDimension);
    for (size_t i = 0; i < kPeersOfLies; ++i) {
      for (size_t k = 0; k < kDimension; ++k) {
        vectors[i][k] = 5 + random.normal();
        if (i >= kLiars) mean[k] += vectors[i][k] / (kPeersOfLies - kLiars);
        if (i < kLiars) vectors[i][k] = random.uniform(1, 1e9);
      }
    }
    const std::vector<std::span<const double>> views(vectors.begin(), vectors.end());
    const std::vector<double> weights(kPeersOfLies, 1);
    const auto centre = centred_clip<double>(views, weights);
    double distance = 0, radius = 0;
    for (size_t k = 0; k < kDimension; ++k) {
      distance += std::pow(centre[k] - mean[k], 2);
      radius += std::pow(vectors[kLiars][k] - mean[k], 2);
    }
    // t b / (n - b), for a radius of about 8, and the clipping of honest vectors.
    EXPECT_LT(std::sqrt(distance), .5 * std::sqrt(radius));
  }
}

// The centre is not exact, which shows in the small distance of a contributor with many samples.
TEST(Liars, AFastPeerIsNotFar) {
  constexpr double kWeight = 400;
  Random random(3);
  std::map<size_t, PartReducer<double>::Contribution> contributions;
  std::vector<double> weights;
  for (size_t i = 0; i < kPeersOfLies; ++i) {
    auto& one = contributions[i];
    one.weight = i == 0 ? kWeight : 1;
    one.numbers.resize(kDimension);
    for (auto& number : one.numbers) number = random.normal() / std::sqrt(one.weight);
    weights.push_back(one.weight);
  }
  std::vector<std::span<const double>> views;
  for (const auto& [index, one] : contributions) views.emplace_back(one.numbers);
  FarContributors<double> far;
  far.add(centred_clip<double>(views, weights), contributions);
  EXPECT_TRUE(far.found().empty());
}

TEST(Liars, EqualVectorsAreTheirCentre) {
  const std::vector<double> vector{1, 2, 3};
  const std::vector<std::span<const double>> same(3, vector);
  EXPECT_EQ(centred_clip<double>(same, std::vector<double>{1, 2, 3}), vector);
  const std::vector<double> other{3, 2, 1};
  const std::vector<std::span<const double>> two{vector, other};
  EXPECT_EQ(centred_clip<double>(two, std::vector<double>{1, 1}), (std::vector<double>{2, 2, 2}));
  const std::vector<std::span<const double>> one{other};
  EXPECT_EQ(centred_clip<double>(one, std::vector<double>{5}), other);
}

}  // namespace
}  // namespace troika::swarm
