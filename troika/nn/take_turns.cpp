#include "troika/nn/take_turns.h"

#include <algorithm>

#include "troika/base/clock.h"

namespace troika::nn {

std::vector<std::vector<double>> take_turns(size_t candidates, double seconds,
                                            const std::function<double(size_t)>& time,
                                            const std::function<bool(bool)>& decide) {
  constexpr int kRounds = 5;
  const Stopwatch whole;
  std::vector<std::vector<double>> rounds(candidates);
  for (size_t candidate = 0; candidate < candidates; ++candidate) time(candidate);
  for (int round = 1; round <= kRounds; ++round) {
    for (size_t candidate = 0; candidate < candidates; ++candidate)
      rounds[candidate].push_back(time(candidate));
    const bool goes_on = whole.seconds() < seconds;
    if (!(decide ? decide(goes_on) : goes_on)) break;
  }
  return rounds;
}

std::vector<double> least_of(const std::vector<std::vector<double>>& rounds) {
  std::vector<double> least;
  for (const auto& one : rounds) least.push_back(*std::ranges::min_element(one));
  return least;
}

}  // namespace troika::nn
