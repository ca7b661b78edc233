// Finds contributors whose numbers are far from those of the others. Internal to the room.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "troika/swarm/part_reducer.h"

namespace troika::swarm {

// The mean of w samples is by sqrt(w) nearer to its expectation than one sample. So d sqrt(w) is
// compared, for the distance d of a contribution from the centre: it is far if that is more than
// kFar times the median of all. Weights above their median count as the median, as in
// centred_clip(): the centre is not more exact than that. With fewer than five contributors, none
// is far.
template <typename Number>
class FarContributors {
 public:
  static constexpr double kFar = 4;

  // A chunk, its centre, and its contributions.
  void add(const std::vector<Number>& centre,
           const std::map<size_t, typename PartReducer<Number>::Contribution>& contributions) {
    ++chunks_;
    std::vector<double> weights;
    for (const auto& [contributor, one] : contributions) {
      if (one.weight > 0) weights.push_back(one.weight);
    }
    if (weights.size() < 5) return;
    std::ranges::sort(weights);
    const double most_weight = weights[weights.size() / 2];
    std::vector<std::pair<double, size_t>> distances;
    for (const auto& [contributor, one] : contributions) {
      if (one.weight == 0) continue;
      double sum = 0;
      for (size_t k = 0; k < centre.size(); ++k) {
        const double difference =
            static_cast<double>(one.numbers[k]) - static_cast<double>(centre[k]);
        sum += difference * difference;
      }
      distances.emplace_back(std::sqrt(sum * std::min(one.weight, most_weight)), contributor);
    }
    std::ranges::sort(distances);
    const double limit = kFar * distances[distances.size() / 2].first;
    for (const auto& [distance, contributor] : distances) {
      if (distance > limit) ++far_[contributor];
    }
  }
  // The contributors that are far in more than half of the chunks.
  std::set<size_t> found() const {
    std::set<size_t> found;
    for (const auto& [contributor, chunks] : far_) {
      if (2 * chunks > chunks_) found.insert(contributor);
    }
    return found;
  }

 private:
  size_t chunks_ = 0;
  std::map<size_t, size_t> far_;  // contributor -> chunks
};

}  // namespace troika::swarm
