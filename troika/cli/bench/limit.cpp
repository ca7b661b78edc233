#include "troika/cli/bench/limit.h"

#include <algorithm>

namespace troika::cli::bench {

namespace {

// As wide as a cache line and AVX-512; for other targets, compilers split it into narrower
// operations.
typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t kWidth = sizeof(Vector) / sizeof(float);

[[gnu::always_inline]] inline void sum_pair(float* a, float* b, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + kWidth <= end; i += kWidth) {
    auto& x = *reinterpret_cast<Vector*>(a + i);
    auto& y = *reinterpret_cast<Vector*>(b + i);
    const Vector sum = x + y;
    x = sum;
    y = sum;
  }
  for (; i < end; ++i) a[i] = b[i] = a[i] + b[i];
}

[[gnu::always_inline]] inline void sum_many(float* const* buffers, int ranks, int64_t begin,
                                            int64_t end) {
  int64_t i = begin;
  for (; i + kWidth <= end; i += kWidth) {
    Vector sum = *reinterpret_cast<const Vector*>(buffers[0] + i);
    for (int k = 1; k < ranks; ++k) sum += *reinterpret_cast<const Vector*>(buffers[k] + i);
    for (int k = 0; k < ranks; ++k) *reinterpret_cast<Vector*>(buffers[k] + i) = sum;
  }
  for (; i < end; ++i) {
    float sum = buffers[0][i];
    for (int k = 1; k < ranks; ++k) sum += buffers[k][i];
    for (int k = 0; k < ranks; ++k) buffers[k][i] = sum;
  }
}

[[gnu::always_inline]] inline void sum_any(float* const* buffers, int ranks, int64_t begin,
                                           int64_t end) {
  if (ranks == 2) {
    sum_pair(buffers[0], buffers[1], begin, end);
  } else {
    sum_many(buffers, ranks, begin, end);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx512f")]] void sum_avx512(float* const* buffers, int ranks, int64_t begin,
                                           int64_t end) {
  sum_any(buffers, ranks, begin, end);
}
[[gnu::target("avx2")]] void sum_avx2(float* const* buffers, int ranks, int64_t begin,
                                      int64_t end) {
  sum_any(buffers, ranks, begin, end);
}
#endif
void sum_baseline(float* const* buffers, int ranks, int64_t begin, int64_t end) {
  sum_any(buffers, ranks, begin, end);
}

using Kernel = void (*)(float* const*, int, int64_t, int64_t);

// Does not use target_clones, whose resolvers run before a sanitizer is initialized.
Kernel best_kernel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512;
  if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
  return sum_baseline;
}

}  // namespace

void sum_into_all(float* const* buffers, int ranks, int64_t begin, int64_t end) {
  static const Kernel kernel = best_kernel();
  kernel(buffers, ranks, begin, end);
}

int64_t slice_begin(int64_t count, int rank, int ranks) {
  const int64_t lines = (count + kWidth - 1) / kWidth;
  return std::min(count, lines * rank / ranks * kWidth);
}

}  // namespace troika::cli::bench
