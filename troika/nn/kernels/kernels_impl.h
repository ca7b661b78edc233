// Included by one source per instruction set, which defines TROIKA_KERNELS, the table's name.
#include "troika/nn/kernels/kernels.h"

namespace troika::nn::kernels {

namespace {

using Bits = unsigned int;
using Half = unsigned short;  // a bfloat16, the upper half of a float32

inline float load(const float* from) {
  return *from;
}

inline float load(const Half* from) {
  return __builtin_bit_cast(float, static_cast<Bits>(*from) << 16);
}

inline void store(float value, float* to) {
  *to = value;
}

// Rounds to the nearest, ties to even; NaN stays NaN.
inline void store(float value, Half* to) {
  const Bits bits = __builtin_bit_cast(Bits, value);
  const Bits rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  *to = static_cast<Half>(value == value ? rounded : 0x7FC0);
}

// Returns exp(x) within two units in the last place for -87 <= x <= 88; other x are clamped to this
// range. x = n ln 2 + r, |r| <= ln 2 / 2, and exp(r) by its Taylor polynomial of degree 7.
inline float exponential(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 2^23: adding it rounds a float to an integer
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  float sum = 1.98412698e-4F;
  sum = sum * r + 1.38888889e-3F;
  sum = sum * r + 8.33333333e-3F;
  sum = sum * r + 4.16666667e-2F;
  sum = sum * r + 1.66666667e-1F;
  sum = sum * r + 0.5F;
  sum = sum * r + 1.0F;
  sum = sum * r + 1.0F;
  const Bits exponent = (__builtin_bit_cast(Bits, shifted) - 0x4B400000U + 127U) << 23;
  return sum * __builtin_bit_cast(float, exponent);
}

constexpr float kSlope = 1.59576912F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

// Returns sigmoid(2 u), or 0 where exp(-2 u) would leave the range of exponential(), so that the
// slope at large negative numbers is 0 as well.
inline float gate(float x) {
  const float minus = -kSlope * (x + kCubic * x * x * x);
  return minus > 87.0F ? 0.0F : 1.0F / (1.0F + exponential(minus));
}

inline float gelu_at(float x) {
  return x * gate(x);
}

inline float gelu_slope(float x) {
  const float open = gate(x);
  return open + x * open * (1.0F - open) * kSlope * (1.0F + 3.0F * kCubic * x * x);
}

// Results for all bfloat16 values, indexed by their bits. Entries of common values stay in the
// first-level cache.
struct Tables {
  Half gelu[1 << 16];
  float slope[1 << 16];

  Tables() {
    for (Bits bits = 0; bits < 1 << 16; ++bits) {
      const float x = __builtin_bit_cast(float, bits << 16);
      store(gelu_at(x), gelu + bits);
      slope[bits] = gelu_slope(x);
    }
  }
};

const Tables& tables() {
  static const Tables all;
  return all;
}

void gelu_of(const float* x, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = gelu_at(x[i]);
}

void gelu_of(const Half* x, Half* out, size_t count) {
  const Half* table = tables().gelu;
  for (size_t i = 0; i < count; ++i) out[i] = table[x[i]];
}

void gelu_backward_of(const float* gradient, const float* x, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = gradient[i] * gelu_slope(x[i]);
}

void gelu_backward_of(const Half* gradient, const Half* x, Half* out, size_t count) {
  constexpr size_t kBlock = 1024;
  const float* table = tables().slope;
  float slopes[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t block = count - begin < kBlock ? count - begin : kBlock;
    for (size_t i = 0; i < block; ++i) slopes[i] = table[x[begin + i]];
    for (size_t i = 0; i < block; ++i) {
      store(load(gradient + begin + i) * slopes[i], out + begin + i);
    }
  }
}

// The number of partial results of sums and maxima, the same for all instruction sets.
constexpr size_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

float maximum(const float* numbers, size_t count) {
  float most = numbers[0];
  size_t i = 0;
  if (count >= kLanes) {
    Lanes lanes, more;
    __builtin_memcpy(&lanes, numbers, sizeof lanes);
    for (i = kLanes; i + kLanes <= count; i += kLanes) {
      __builtin_memcpy(&more, numbers + i, sizeof more);
      lanes = more > lanes ? more : lanes;
    }
    for (size_t j = 0; j < kLanes; ++j) most = lanes[j] > most ? lanes[j] : most;
  }
  for (; i < count; ++i) most = numbers[i] > most ? numbers[i] : most;
  return most;
}

float sum_of(const float* numbers, size_t count) {
  Lanes lanes = {}, more;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __builtin_memcpy(&more, numbers + i, sizeof more);
    lanes += more;
  }
  float sum = 0;
  for (; i < count; ++i) sum += numbers[i];
  for (size_t j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

template <typename T>
void causal_softmax_of(T* scores, const CausalRows& shape, float scale, float* scratch,
                       size_t begin, size_t end) {
  for (size_t r = begin; r < end; ++r) {
    T* row = scores + r * shape.columns;
    const size_t seen = shape.first + r % shape.rows + 1;
    for (size_t i = 0; i < seen; ++i) scratch[i] = load(row + i);
    const float most = maximum(scratch, seen);
    for (size_t i = 0; i < seen; ++i) scratch[i] = exponential((scratch[i] - most) * scale);
    const float share = 1.0F / sum_of(scratch, seen);
    for (size_t i = 0; i < seen; ++i) store(scratch[i] * share, row + i);
    for (size_t i = seen; i < shape.columns; ++i) row[i] = T{};
  }
}

template <typename T>
void causal_softmax_backward_of(T* gradients, const T* weights, const CausalRows& shape,
                                float scale, float* scratch, size_t begin, size_t end) {
  for (size_t r = begin; r < end; ++r) {
    T* row = gradients + r * shape.columns;
    const T* weight = weights + r * shape.columns;
    const size_t seen = shape.first + r % shape.rows + 1;
    for (size_t i = 0; i < seen; ++i) scratch[i] = load(row + i) * load(weight + i);
    const float sum = sum_of(scratch, seen);
    for (size_t i = 0; i < seen; ++i)
      store(scale * load(weight + i) * (load(row + i) - sum), row + i);
    for (size_t i = seen; i < shape.columns; ++i) row[i] = T{};
  }
}

template <typename T>
LogitSums softmax_gradient_of(T* logits, size_t columns, size_t target, float scale,
                              float* scratch) {
  for (size_t i = 0; i < columns; ++i) scratch[i] = load(logits + i);
  const float most = maximum(scratch, columns);
  const float below_most = most - scratch[target];
  for (size_t i = 0; i < columns; ++i) scratch[i] = exponential(scratch[i] - most);
  const float sum = sum_of(scratch, columns);
  const float share = scale / sum;
  for (size_t i = 0; i < columns; ++i) store(scratch[i] * share, logits + i);
  store((scratch[target] / sum - 1.0F) * scale, logits + target);
  return {sum, below_most};
}

// MurmurHash3's 32-bit finaliser (Appleby 2011).
inline Bits finalised(Bits h) {
  h = (h ^ (h >> 16)) * 0x85ebca6bU;
  h = (h ^ (h >> 13)) * 0xc2b2ae35U;
  return h ^ (h >> 16);
}

template <typename T>
void dropout_of(const T* x, T* out, unsigned long key, Bits first, Bits threshold, float scale,
                size_t count) {
  const Bits low = static_cast<Bits>(key) + first, high = static_cast<Bits>(key >> 32);
  for (size_t i = 0; i < count; ++i) {
    const bool is_kept = finalised(finalised(low + static_cast<Bits>(i)) ^ high) >= threshold;
    store(is_kept ? load(x + i) * scale : 0.0F, out + i);
  }
}

template <typename T>
T* as(void* numbers) {
  return static_cast<T*>(numbers);
}

template <typename T>
const T* as(const void* numbers) {
  return static_cast<const T*>(numbers);
}

void gelu(Number number, const void* x, void* out, size_t count) {
  if (number == Number::f32) return gelu_of(as<float>(x), as<float>(out), count);
  gelu_of(as<Half>(x), as<Half>(out), count);
}

void gelu_backward(Number number, const void* gradient, const void* x, void* out, size_t count) {
  if (number == Number::f32) {
    return gelu_backward_of(as<float>(gradient), as<float>(x), as<float>(out), count);
  }
  gelu_backward_of(as<Half>(gradient), as<Half>(x), as<Half>(out), count);
}

void causal_softmax(Number number, void* scores, const CausalRows& shape, float scale,
                    float* scratch, size_t begin, size_t end) {
  if (number == Number::f32) {
    return causal_softmax_of(as<float>(scores), shape, scale, scratch, begin, end);
  }
  causal_softmax_of(as<Half>(scores), shape, scale, scratch, begin, end);
}

void causal_softmax_backward(Number number, void* gradients, const void* weights,
                             const CausalRows& shape, float scale, float* scratch, size_t begin,
                             size_t end) {
  if (number == Number::f32) {
    return causal_softmax_backward_of(as<float>(gradients), as<float>(weights), shape, scale,
                                      scratch, begin, end);
  }
  causal_softmax_backward_of(as<Half>(gradients), as<Half>(weights), shape, scale, scratch, begin,
                             end);
}

LogitSums softmax_gradient(Number number, void* logits, size_t columns, size_t target, float scale,
                           float* scratch) {
  if (number == Number::f32) {
    return softmax_gradient_of(as<float>(logits), columns, target, scale, scratch);
  }
  return softmax_gradient_of(as<Half>(logits), columns, target, scale, scratch);
}

void dropout(Number number, const void* x, void* out, unsigned long key, unsigned first,
             unsigned threshold, float scale, size_t count) {
  if (number == Number::f32) {
    return dropout_of(as<float>(x), as<float>(out), key, first, threshold, scale, count);
  }
  dropout_of(as<Half>(x), as<Half>(out), key, first, threshold, scale, count);
}

}  // namespace

const Kernels TROIKA_KERNELS{
    gelu, gelu_backward, causal_softmax, causal_softmax_backward, softmax_gradient, dropout};

}  // namespace troika::nn::kernels
