// The 8-bit codes of kernels.h: moments from codes and back. Included where kernels are compiled.
#pragma once

#include "troika/optim/kernels/kernels.h"

namespace troika::optim::kernels {

namespace {

// Floats as positions on the grid of 8 levels an octave: their upper 12 bits, with 20 below.
constexpr int kShift = 20;
constexpr int kBelow = (1 << kShift) - 1;
constexpr int kInfinity = 0x7f800000;
constexpr int kMagnitude = 0x7fffffff;
constexpr int kTopSecond = 255, kTopFirst = 127;  // codes of the block's largest

float float_of(int bits) {
  return __builtin_bit_cast(float, bits);
}
int bits_of(float x) {
  return __builtin_bit_cast(int, x);
}

// Where in (0, 1), times 2^32, each element of a block begins its sequence of random numbers. The
// golden ratio leads from step to step.
constexpr unsigned kGoldenRatio = 0x9e3779b9u;
struct Phases {
  constexpr Phases() {
    for (unsigned i = 0; i < kBlock; ++i) {
      first[i] = mixed(2 * i + 1);
      second[i] = mixed(2 * i + 2);
    }
  }
  // The finaliser of MurmurHash3.
  static constexpr unsigned mixed(unsigned x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
  }
  unsigned first[kBlock] = {}, second[kBlock] = {};
};
constexpr Phases kPhases;

// Whether a block's level is one that moments can be decoded with.
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

// The position of the least level of the grid that no magnitude exceeds, at most the largest finite
// one; -1 if one is infinite or not a number. `magnitudes` are bits of floats.
int top_of(const int* magnitudes, size_t count) {
  int most = 0;
  for (size_t i = 0; i < count; ++i) most = magnitudes[i] > most ? magnitudes[i] : most;
  if (most >= kInfinity) return -1;
  const int top = (most + kBelow) >> kShift, last = (kInfinity >> kShift) - 1;
  return top < last ? top : last;
}

// Up or down to a level at random, with the mean kept.
int rounded(int magnitude, unsigned random, int top) {
  const unsigned sum = static_cast<unsigned>(magnitude) + (random >> (32 - kShift));
  const int position = static_cast<int>(sum >> kShift);
  return position < top ? position : top;
}

template <typename T>
void encode_first(const T* x, size_t count, unsigned step, unsigned char* codes, float* largest) {
  int magnitudes[kBlock], signs[kBlock];
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const int bits = bits_of(static_cast<float>(x[i]));
    magnitudes[i] = bits & kMagnitude;
    signs[i] = bits < 0 ? kTopFirst + 1 : 0;
  }
  const int top = top_of(magnitudes, count);
  *largest = top < 0 ? __builtin_nanf("") : float_of(top << kShift);
  const int below = top - kTopFirst, least = below > 0 ? below + 1 : 1;
  const float least_level = float_of(least << kShift);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const unsigned random = kPhases.first[i] + step * kGoldenRatio;
    const float share = static_cast<float>(static_cast<int>(random >> 8)) * 0x1p-24f;
    const int small = float_of(magnitudes[i]) > share * least_level ? least - below : 0;
    const int code =
        magnitudes[i] < least << kShift ? small : rounded(magnitudes[i], random, top) - below;
    codes[i] = static_cast<unsigned char>(code > 0 ? code | signs[i] : 0);
  }
}

template <typename T>
void encode_second(const T* x, size_t count, unsigned step, unsigned char* codes, float* largest) {
  int magnitudes[kBlock];
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const int bits = bits_of(static_cast<float>(x[i])) & kMagnitude;
    magnitudes[i] = bits == kInfinity ? kInfinity - 1 : bits;
  }
  const int top = top_of(magnitudes, count);
  *largest = top < 0 ? __builtin_nanf("") : float_of(top << kShift);
  const int below = top - kTopSecond, least = below > 0 ? below + 1 : 1;
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const unsigned random = kPhases.second[i] + step * kGoldenRatio;
    const int position = rounded(magnitudes[i], random, top);
    const int code = (position > least ? position : least) - below;
    codes[i] = static_cast<unsigned char>(magnitudes[i] > 0 ? code : 0);
  }
}

}  // namespace

}  // namespace troika::optim::kernels
