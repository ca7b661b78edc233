// Included by one source file per instruction set, which defines the function name TROIKA_REDUCE.
#include "troika/comm/kernels/reduce.h"

namespace troika::comm::kernels {

namespace {

// Elements reduced at a time if there are more than two terms: their sums stay in the L1 cache.
constexpr size_t kBlock = 1024;

struct Half {
  _Float16 value;
};
struct BFloat16 {
  unsigned short bits;
};

template <typename T>
T load(T value) {
  return value;
}
float load(Half value) {
  return static_cast<float>(value.value);
}
float load(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<unsigned>(value.bits) << 16);
}

template <typename T>
void store(T& place, T value) {
  place = value;
}
void store(Half& place, float value) {
  place.value = static_cast<_Float16>(value);
}
// Rounds to the nearest, ties to even.
void store(BFloat16& place, float value) {
  const auto bits = __builtin_bit_cast(unsigned, value);
  const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  place.bits = static_cast<unsigned short>(value != value ? 0x7fc0 : rounded);
}

// The type in which elements are combined.
template <typename T>
using Value = decltype(load(T()));

// Holds the exact sum of the integers of any number of terms.
__extension__ typedef __int128 Int128;
template <typename T>
struct Wide {
  using Type = Value<T>;
};
template <typename T>
requires(Value<T>(0.5) == 0) struct Wide<T> {
  using Type = long long;
};
template <>
struct Wide<long long> {
  using Type = Int128;
};

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
template <typename T>
bool is_nan(T) {
  return false;
}
bool is_nan(float value) {
  return value != value;
}
bool is_nan(double value) {
  return value != value;
}

// Returns NaN if either is NaN, as in LibTorch.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return (b < a) | is_nan(b) ? b : a;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return (a < b) | is_nan(b) ? b : a;
  }
};
struct Multiply {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};

template <typename T, typename Combine, typename Sum = Value<T>>
struct ReduceLoop {
  void* const* into;
  size_t into_count;
  const void* const* terms;
  size_t term_count;
  size_t count;
  int divisor = 1;
  Combine combine = {};

  const T* term(size_t k) const { return static_cast<const T*>(terms[k]); }
  T* result(size_t j) const { return static_cast<T*>(into[j]); }

  // Two terms are the common case; one pass over memory suffices.
  template <bool divided, bool twice>
  void two_terms() const {
    const T* a = term(0);
    const T* b = term(1);
    T* first = result(0);
    T* second = result(into_count - 1);
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
      Sum value = combine(Sum(load(a[i])), Sum(load(b[i])));
      if constexpr (divided) value = value / static_cast<Sum>(divisor);
      store(first[i], static_cast<Value<T>>(value));
      if constexpr (twice) store(second[i], static_cast<Value<T>>(value));
    }
  }

  void many_terms() const {
    Sum sums[kBlock];
    for (size_t begin = 0; begin < count; begin += kBlock) {
      const size_t length = count - begin < kBlock ? count - begin : kBlock;
      for (size_t i = 0; i < length; ++i) sums[i] = load(term(0)[begin + i]);
      for (size_t k = 1; k < term_count; ++k) {
        const T* from = term(k) + begin;
        for (size_t i = 0; i < length; ++i) sums[i] = combine(sums[i], Sum(load(from[i])));
      }
      if (divisor != 1) {
        for (size_t i = 0; i < length; ++i) sums[i] = sums[i] / static_cast<Sum>(divisor);
      }
      for (size_t j = 0; j < into_count; ++j) {
        T* out = result(j) + begin;
        for (size_t i = 0; i < length; ++i) store(out[i], static_cast<Value<T>>(sums[i]));
      }
    }
  }

  void run() const {
    if (term_count != 2 || into_count > 2) return many_terms();
    if (into_count == 1) return divisor == 1 ? two_terms<false, false>() : two_terms<true, false>();
    return divisor == 1 ? two_terms<false, true>() : two_terms<true, true>();
  }
};

template <typename T>
void with_type(void* const* into, size_t into_count, const void* const* terms, size_t term_count,
               size_t count, Op op, int divisor) {
  switch (op) {
    case Op::sum:
      if (divisor == 1) return ReduceLoop<T, Add>{into, into_count, terms, term_count, count}.run();
      return ReduceLoop<T, Add, typename Wide<T>::Type>{into,       into_count, terms,
                                                        term_count, count,      divisor}
          .run();
    case Op::min:
      return ReduceLoop<T, Min>{into, into_count, terms, term_count, count}.run();
    case Op::max:
      return ReduceLoop<T, Max>{into, into_count, terms, term_count, count}.run();
    case Op::product:
      return ReduceLoop<T, Multiply>{into, into_count, terms, term_count, count}.run();
  }
}

}  // namespace

void TROIKA_REDUCE(void* const* into, size_t into_count, const void* const* terms,
                   size_t term_count, size_t count, Type type, Op op, int divisor) {
  const auto run = [&]<typename T>(T) {
    with_type<T>(into, into_count, terms, term_count, count, op, divisor);
  };
  switch (type) {
    case Type::f64:
      return run(double());
    case Type::f32:
      return run(float());
    case Type::f16:
      return run(Half());
    case Type::bf16:
      return run(BFloat16());
    case Type::i64:
      return run(0LL);
    case Type::i32:
      return run(0);
    case Type::i16:
      return run(short());
    case Type::i8:
      return run(static_cast<signed char>(0));
    case Type::u8:
      return run(static_cast<unsigned char>(0));
  }
}

}  // namespace troika::comm::kernels
