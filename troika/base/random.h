// Random numbers that are the same on every machine, compiler and LibTorch: what data order,
// augmentation and generated data are made from. Standard distributions differ between standard
// libraries, so the few needed are here.
#pragma once

#include <cstdint>
#include <vector>

namespace troika {

// Mixes words into one well-spread 64-bit value (SplitMix64's finaliser, Steele et al. 2014).
uint64_t mix(uint64_t a, uint64_t b = 0, uint64_t c = 0);

// SplitMix64: tiny state, passes BigCrush, cheap to seed, so every sample can have its own.
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
  // Uniform in [0, bound) without modulo bias; bound must be positive.
  uint64_t below(uint64_t bound);
  // Standard normal (Box and Muller).
  double normal();

 private:
  uint64_t state_;
};

// A permutation of 0 .. n-1 (Fisher and Yates), a pure function of (n, seed).
std::vector<int64_t> permutation(int64_t n, uint64_t seed);

}  // namespace troika
