// The problem that simulated peers solve: the place of the minimum of |w - w*|^2 / 2. Internal to
// the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "troika/base/random.h"
#include "troika/swarm/simulation/scenario.h"

namespace troika::swarm {

class SimulatedProblem {
 public:
  SimulatedProblem(size_t numbers, uint64_t seed);

  size_t numbers() const { return minimum_.size(); }
  double loss(const std::vector<float>& weights) const;
  // The mean gradient of so many samples, with noise, or a lie about it. Zeros without samples.
  // `first` is the liar's first gradient, which is set when it is empty.
  std::vector<float> gradient(const std::vector<float>& weights, int64_t samples, SimulatedLie lie,
                              std::vector<float>& first, Random& random) const;

  static void descend(std::vector<float>& weights, const std::vector<float>& gradient);

 private:
  std::vector<float> minimum_;
};

}  // namespace troika::swarm
