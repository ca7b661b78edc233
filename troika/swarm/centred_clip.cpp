#include "troika/swarm/centred_clip.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace troika::swarm {

namespace {

constexpr int kMostIterations = 20;
constexpr double kSmallStep = 1e-6;

// The mean of the two middle values of an even number. Reorders them.
double median(std::span<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

template <typename Number>
double distance_of(std::span<const Number> vector, const std::vector<double>& from) {
  double sum = 0;
  for (size_t k = 0; k < from.size(); ++k) {
    const double difference = static_cast<double>(vector[k]) - from[k];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

}  // namespace

template <typename Number>
std::vector<double> centred_clip(std::span<const std::span<const Number>> vectors,
                                 std::span<const double> weights) {
  std::vector<double> scratch(weights.begin(), weights.end());
  const double most_weight = median(scratch);
  std::vector<double> bounded(weights.begin(), weights.end());
  // With a median of 0 there are too few weights to tell which are too large.
  if (most_weight > 0) {
    for (auto& weight : bounded) weight = std::min(weight, most_weight);
  }
  double all = 0;
  for (const double weight : bounded) all += weight;
  std::vector<double> centre(vectors.front().size());
  for (size_t k = 0; k < centre.size(); ++k) {
    for (size_t i = 0; i < vectors.size(); ++i) scratch[i] = static_cast<double>(vectors[i][k]);
    centre[k] = median(scratch);
  }
  for (size_t i = 0; i < vectors.size(); ++i) scratch[i] = distance_of(vectors[i], centre);
  const double radius = median(scratch);
  std::vector<double> step(centre.size());
  for (int iteration = 0; iteration < kMostIterations && radius > 0; ++iteration) {
    std::ranges::fill(step, 0);
    for (size_t i = 0; i < vectors.size(); ++i) {
      const double distance = distance_of(vectors[i], centre);
      const double factor = bounded[i] / all * (distance > radius ? radius / distance : 1);
      for (size_t k = 0; k < step.size(); ++k) {
        step[k] += factor * (static_cast<double>(vectors[i][k]) - centre[k]);
      }
    }
    double length = 0;
    for (size_t k = 0; k < step.size(); ++k) {
      centre[k] += step[k];
      length += step[k] * step[k];
    }
    if (std::sqrt(length) <= kSmallStep * radius) break;
  }
  return centre;
}

template std::vector<double> centred_clip(std::span<const std::span<const float>>,
                                          std::span<const double>);
template std::vector<double> centred_clip(std::span<const std::span<const double>>,
                                          std::span<const double>);

}  // namespace troika::swarm
