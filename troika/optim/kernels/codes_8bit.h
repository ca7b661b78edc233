// Encoding and decoding of the 8-bit moments of kernels.h. Included where kernels are compiled.
#pragma once

#include "troika/optim/kernels/kernels.h"

namespace troika::optim::kernels {

namespace {

// Positions on the grid of 8 levels per octave: the upper 12 bits of a float; 20 bits are below.
constexpr int kShift = 20;
constexpr int kBelow = (1 << kShift) - 1;
constexpr int kInfinity = 0x7f800000;
constexpr int kMagnitude = 0x7fffffff;
constexpr int kTopSecond = 255, kTopFirst = 127;  // codes of the block's largest level

float float_of(int bits) {
  return __builtin_bit_cast(float, bits);
}
int bits_of(float x) {
  return __builtin_bit_cast(int, x);
}

// The start of each element's random sequence, as a fraction of 2^32. Each step advances the
// sequence by the golden ratio.
constexpr unsigned kGoldenRatio = 0x9e3779b9u;
struct Phases {
  constexpr Phases() {
    for (unsigned i = 0; i < kBlock; ++i) {
      first[i] = mixed(2 * i + 1);
      second[i] = mixed(2 * i + 2);
    }
  }
  // MurmurHash3's finaliser.
  static constexpr unsigned mixed(unsigned x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
  }
  unsigned first[kBlock] = {}, second[kBlock] = {};
};
constexpr Phases kPhases;

// Whether moments can be decoded with this level of a block.
bool is_level(float largest) {
  return largest >= 0 && bits_of(largest) < kInfinity;
}

template <typename T>
void decode_first(const unsigned char* codes, float largest, size_t count, T* x) {
  const int below = (bits_of(largest) >> kShift) - kTopFirst;
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const int code = codes[i] & kTopFirst;
    const int bits = code > 0 ? (code + below) << kShift : 0;
    x[i] = static_cast<T>(float_of(bits | (codes[i] >> 7) << 31));
  }
}

template <typename T>
void decode_second(const unsigned char* codes, float largest, size_t count, T* x) {
  const int below = (bits_of(largest) >> kShift) - kTopSecond;
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const int code = codes[i];
    x[i] = static_cast<T>(float_of(code > 0 ? (code + below) << kShift : 0));
  }
}

constexpr short kTopPosition = (kInfinity >> kShift) - 1;  // position of the largest finite level

// The magnitudes of a block as positions on the grid. Positions take 12 bits, so a vector register
// holds twice as many of them as floats.
struct Positions {
  // `phases` and `step` determine the random numbers.
  template <typename T>
  Positions(const T* x, size_t count, const unsigned* phases, unsigned step) {
    short most = 0, least = kTopPosition;
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
      const unsigned magnitude =
          static_cast<unsigned>(bits_of(static_cast<float>(x[i])) & kMagnitude);
      const unsigned random = (phases[i] + step * kGoldenRatio) >> (32 - kShift);
      rounded[i] = static_cast<short>((magnitude + random) >> kShift);
      const short position = static_cast<short>((magnitude + kBelow) >> kShift);
      above[i] = position;
      most = position > most ? position : most;
      const short not_zero = position > 0 ? position : kTopPosition;
      least = not_zero < least ? not_zero : least;
    }
    top = most;
    bottom = least;
  }

  short rounded[kBlock];  // up or down at random, unbiased
  short above[kBlock];    // rounded up: 0 only for a magnitude of 0
  short top;              // the maximum of `above`
  short bottom;           // the minimum of the nonzero `above`, at most kTopPosition
};

// Whether the block has an infinite number or a NaN.
template <typename T>
bool is_beyond(const T* x, size_t count) {
  int most = 0;
  for (size_t i = 0; i < count; ++i) {
    const int magnitude = bits_of(static_cast<float>(x[i])) & kMagnitude;
    most = magnitude > most ? magnitude : most;
  }
  return most >= kInfinity;
}

// Sets `is_kept` to -1 or 0 at random. A magnitude below `level` is kept, and then becomes `level`,
// with a probability that makes the rounding unbiased.
template <typename T>
void draw_small(const T* x, size_t count, unsigned step, float level, short* is_kept) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const unsigned random = kPhases.first[i] + step * kGoldenRatio;
    const float share = static_cast<float>(static_cast<int>(random >> 8)) * 0x1p-24f;
    const float magnitude = float_of(bits_of(static_cast<float>(x[i])) & kMagnitude);
    is_kept[i] = static_cast<short>(magnitude > share * level ? -1 : 0);
  }
}

template <typename T>
void encode_first(const T* x, size_t count, unsigned step, unsigned char* codes, float* largest) {
  const Positions positions(x, count, kPhases.first, step);
  // Finite numbers above the last level round up to the position of infinity.
  const bool is_bad = positions.top > kTopPosition && is_beyond(x, count);
  const short top = positions.top < kTopPosition ? positions.top : kTopPosition;
  *largest = is_bad ? __builtin_nanf("") : float_of(top << kShift);
  // Codes are positions minus `below`; `least` is the position of the lowest level with a code.
  const short below = top - kTopFirst, least = below > 0 ? below + 1 : 1;
  short is_kept[kBlock] = {};
  if (positions.bottom <= least) draw_small(x, count, step, float_of(least << kShift), is_kept);
  const short least_code = least - below;
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const short position = positions.rounded[i] < top ? positions.rounded[i] : top;
    const short code = positions.above[i] > least ? position - below : least_code & is_kept[i];
    const short sign = bits_of(static_cast<float>(x[i])) < 0 ? kTopFirst + 1 : 0;
    codes[i] = static_cast<unsigned char>(code > 0 ? code | sign : 0);
  }
}

template <typename T>
void encode_second(const T* x, size_t count, unsigned step, unsigned char* codes, float* largest) {
  const Positions positions(x, count, kPhases.second, step);
  // Infinity has the position kTopPosition + 1, and NaNs have larger ones.
  const bool is_number = positions.top <= kTopPosition + 1;
  const int top = positions.top < kTopPosition ? positions.top : kTopPosition;
  *largest = is_number ? float_of(top << kShift) : __builtin_nanf("");
  const short below = static_cast<short>(top - kTopSecond);
  const short least = below > 0 ? below + 1 : 1, last = static_cast<short>(top);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const short down = positions.rounded[i] < last ? positions.rounded[i] : last;
    const short position = down > least ? down : least;
    codes[i] = static_cast<unsigned char>(positions.above[i] > 0 ? position - below : 0);
  }
}

}  // namespace

}  // namespace troika::optim::kernels
