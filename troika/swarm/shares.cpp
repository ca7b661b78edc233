#include "troika/swarm/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "troika/base/error.h"

namespace troika::swarm {

namespace {

void require(bool holds, const char* what, const std::string& got, const char* expected) {
  if (holds) return;
  throw Error("swarm", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
}

double sum_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Fills in unknown bandwidths.
std::vector<double> known_rates(std::span<const std::optional<double>> bandwidths) {
  double sum = 0;
  int known = 0;
  for (const auto& rate : bandwidths) {
    require(!rate || (std::isfinite(*rate) && *rate >= 0), "the bandwidth of a peer",
            fmt::format("{}", rate.value_or(0)), "a finite number from 0");
    if (rate && *rate > 0) sum += *rate, ++known;
  }
  const double mean = known > 0 ? sum / known : 1;
  std::vector<double> rates;
  for (const auto& rate : bandwidths) rates.push_back(rate.value_or(mean));
  return rates;
}

std::vector<double> weights_within(double time, std::span<const double> rates) {
  const auto others = static_cast<double>(rates.size()) - 2;
  std::vector<double> weights;
  for (const double rate : rates) {
    weights.push_back(rate > 0 ? std::clamp((time * rate - 1) / others, 0.0, 1.0) : 0.0);
  }
  return weights;
}

}  // namespace

Shares balanced_shares(std::span<const std::optional<double>> bandwidths) {
  const auto rates = known_rates(bandwidths);
  const auto positive = [](double rate) { return rate > 0; };
  require(std::ranges::any_of(rates, positive), "the bandwidths of peers", "only zeros",
          "at least one above 0");
  double least = 0;  // the time in which each peer's own vector crosses its link
  for (const double rate : rates) {
    if (rate > 0) least = std::max(least, 1 / rate);
  }
  Shares shares{.fractions = {}, .seconds_per_byte = least};
  if (rates.size() <= 2) {
    for (const double rate : rates) shares.fractions.push_back(rate > 0 ? 1 : 0);
  } else {
    const auto suffices = [&](double time) { return sum_of(weights_within(time, rates)) >= 1; };
    double low = least, high = least;
    // A single peer reduces all in this time.
    if (!suffices(low)) high = static_cast<double>(rates.size() - 1) / std::ranges::max(rates);
    while (high - low > 1e-15 * high) {
      const double middle = low + (high - low) / 2;
      if (middle <= low || middle >= high) break;
      (suffices(middle) ? high : low) = middle;
    }
    shares.fractions = weights_within(high, rates);
    shares.seconds_per_byte = high;
  }
  const double sum = sum_of(shares.fractions);
  for (auto& fraction : shares.fractions) fraction /= sum;
  return shares;
}

std::vector<size_t> part_sizes(size_t count, std::span<const double> fractions, size_t least) {
  require(std::ranges::all_of(fractions, [](double f) { return std::isfinite(f) && f >= 0; }) &&
              sum_of(fractions) > 0,
          "the fractions of peers", fmt::format("a sum of {}", sum_of(fractions)),
          "numbers from 0, whose sum is above 0");
  std::vector<double> scores(fractions.begin(), fractions.end());
  const double all = sum_of(scores);
  const auto is_enough = [&](double score) {
    return score / all * static_cast<double>(count) >= static_cast<double>(least);
  };
  if (std::ranges::any_of(scores, is_enough)) {
    for (auto& score : scores) score = is_enough(score) ? score : 0;
  }
  const double kept = sum_of(scores);
  std::vector<size_t> sizes;
  size_t given = 0;
  for (const double score : scores) {
    sizes.push_back(static_cast<size_t>(static_cast<double>(count) * (score / kept)));
    given += sizes.back();
  }
  // Rounding of large products may give one too many.
  for (; given > count; --given) --*std::ranges::max_element(sizes);
  for (; given < count; ++given) {
    size_t best = 0;
    const auto quotient = [&](size_t i) { return scores[i] / (static_cast<double>(sizes[i]) + 1); };
    for (size_t i = 1; i < sizes.size(); ++i) {
      if (quotient(i) > quotient(best)) best = i;
    }
    ++sizes[best];
  }
  return sizes;
}

}  // namespace troika::swarm
