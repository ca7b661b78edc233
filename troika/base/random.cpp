#include "troika/base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace troika {

namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

uint64_t finalise(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  return finalise(finalise(finalise(a + kGolden) + b + kGolden) + c + kGolden);
}

uint64_t Random::operator()() {
  state_ += kGolden;
  return finalise(state_);
}

double Random::uniform() {
  return static_cast<double>((*this)() >> 11) * 0x1.0p-53;
}

uint64_t Random::below(uint64_t bound) {
  // Values below the threshold would make low residues more likely.
  const uint64_t threshold = (0 - bound) % bound;
  uint64_t value = (*this)();
  while (value < threshold) value = (*this)();
  return value % bound;
}

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

std::vector<int64_t> permutation(int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  Random random(seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace troika
