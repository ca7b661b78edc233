// Random numbers that are identical on every machine, compiler and LibTorch version. Data order,
// augmentation and generated data use them. Distributions of the standard library differ between
// implementations, so the few that are needed are here.
#pragma once

#include <cstdint>
#include <vector>

namespace troika {

// Mixes three words into one well-distributed 64-bit value (SplitMix64's finalizer, Steele et al.
// 2014).
uint64_t mix(uint64_t a, uint64_t b = 0, uint64_t c = 0);

// The SplitMix64 generator. It passes BigCrush, and its small state and cheap seeding allow one
// generator per sample.
class Random {
 public:
  using result_type = uint64_t;
  explicit Random(uint64_t seed) : state_(seed) {}

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  uint64_t operator()();

  // Uniform in [0, 1).
  double uniform();
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Uniform in [0, bound), without modulo bias. `bound` must be positive.
  uint64_t below(uint64_t bound);
  // Standard normal (Box-Muller).
  double normal();

 private:
  uint64_t state_;
};

// A random permutation of 0 .. n-1 (Fisher-Yates). Depends only on (n, seed).
std::vector<int64_t> permutation(int64_t n, uint64_t seed);

}  // namespace troika
