#include "troika/swarm/simulation/simulated_problem.h"

#include <cmath>
#include <limits>

namespace troika::swarm {

namespace {

constexpr double kNoise = 1;  // standard deviation of a number of the gradient of a sample
constexpr float kRate = .1F;
constexpr float kScaled = 100;
constexpr float kConstant = 10;
constexpr double kBelow = 1.5;  // standard deviations

}  // namespace

SimulatedProblem::SimulatedProblem(size_t numbers, uint64_t seed) {
  Random random(seed);
  for (size_t k = 0; k < numbers; ++k) minimum_.push_back(static_cast<float>(random.normal()));
}

double SimulatedProblem::loss(const std::vector<float>& weights) const {
  double sum = 0;
  for (size_t k = 0; k < numbers(); ++k) {
    const double distance = static_cast<double>(weights[k]) - static_cast<double>(minimum_[k]);
    sum += distance * distance;
  }
  return sum / 2 / static_cast<double>(numbers());
}

std::vector<float> SimulatedProblem::gradient(const std::vector<float>& weights, int64_t samples,
                                              SimulatedLie lie, std::vector<float>& first,
                                              Random& random) const {
  std::vector<float> result(numbers());
  if (samples <= 0) return result;
  const double deviation = kNoise / std::sqrt(static_cast<double>(samples));
  for (size_t k = 0; k < numbers(); ++k) {
    const double noise = lie == SimulatedLie::colluding ? -kBelow : random.normal();
    result[k] = weights[k] - minimum_[k] + static_cast<float>(noise * deviation);
  }
  if (lie == SimulatedLie::delayed && first.empty()) first = result;
  for (size_t k = 0; k < numbers(); ++k) {
    float& number = result[k];
    switch (lie) {
      case SimulatedLie::none:
      case SimulatedLie::colluding:
        break;
      case SimulatedLie::sign_flip:
        number = -number;
        break;
      case SimulatedLie::scaled:
        number *= kScaled;
        break;
      case SimulatedLie::constant:
        number = kConstant;
        break;
      case SimulatedLie::delayed:
        number = first[k];
        break;
      case SimulatedLie::not_a_number:
        number = std::numeric_limits<float>::quiet_NaN();
        break;
    }
  }
  return result;
}

void SimulatedProblem::descend(std::vector<float>& weights, const std::vector<float>& gradient) {
  for (size_t k = 0; k < weights.size(); ++k) weights[k] -= kRate * gradient[k];
}

}  // namespace troika::swarm
