// Included by one source per instruction set, which defines TROIKA_KERNELS, the table's name.
#include "troika/optim/kernels/codes_8bit.h"
#include "troika/optim/kernels/kernels.h"

namespace troika::optim::kernels {

namespace {

float root(float x) {
  return __builtin_sqrtf(x);
}
double root(double x) {
  return __builtin_sqrt(x);
}

template <typename T>
T magnitude(T x) {
  return x < 0 ? -x : x;
}

template <typename T>
struct Elements {
  explicit Elements(const ParameterSpan& span)
      : p(static_cast<T*>(span.parameter)),
        g(static_cast<const T*>(span.gradient)),
        first(static_cast<T*>(span.first)),
        second(static_cast<T*>(span.second)),
        count(span.count) {}

  T* p;
  const T* g;
  T* first;
  T* second;
  size_t count;
};

template <typename T, bool buffered, bool nesterov>
void sgd_loop(const Elements<T>& x, const Sgd& how) {
  const T rate = static_cast<T>(how.rate), momentum = static_cast<T>(how.momentum),
          decay = static_cast<T>(how.weight_decay);
#pragma GCC ivdep
  for (size_t i = 0; i < x.count; ++i) {
    T g = x.g[i] + decay * x.p[i];
    if constexpr (buffered) {
      const T b = momentum * x.first[i] + g;
      x.first[i] = b;
      g = nesterov ? g + momentum * b : b;
    }
    x.p[i] -= rate * g;
  }
}

template <typename T>
void sgd_of(const ParameterSpan& span, const Sgd& how) {
  const Elements<T> x(span);
  if (!x.first) return sgd_loop<T, false, false>(x, how);
  if (how.nesterov) return sgd_loop<T, true, true>(x, how);
  sgd_loop<T, true, false>(x, how);
}

template <typename T>
struct AdamFactors {
  explicit AdamFactors(const Adam& how)
      : beta1(static_cast<T>(how.beta1)),
        beta2(static_cast<T>(how.beta2)),
        rest1(static_cast<T>(1 - how.beta1)),
        rest2(static_cast<T>(1 - how.beta2)),
        step_size(static_cast<T>(how.step_size)),
        inverse_root(static_cast<T>(how.inverse_root)),
        eps(static_cast<T>(how.eps)),
        decay(static_cast<T>(how.weight_decay)),
        shrink(static_cast<T>(how.shrink)) {}

  void operator()(T& parameter, T gradient, T& first, T& second) const {
    const T p = parameter * shrink;
    const T g = gradient + decay * p;
    const T m = first * beta1 + rest1 * g;
    const T v = second * beta2 + rest2 * g * g;
    first = m;
    second = v;
    parameter = p - step_size * (m / (root(v) * inverse_root + eps));
  }

  T beta1, beta2, rest1, rest2, step_size, inverse_root, eps, decay, shrink;
};

template <typename T>
void adam_of(const ParameterSpan& span, const Adam& how) {
  const Elements<T> x(span);
  const AdamFactors<T> step(how);
#pragma GCC ivdep
  for (size_t i = 0; i < x.count; ++i) step(x.p[i], x.g[i], x.first[i], x.second[i]);
}

template <typename T>
void adagrad_of(const ParameterSpan& span, const Adagrad& how) {
  const Elements<T> x(span);
  const T rate = static_cast<T>(how.rate), eps = static_cast<T>(how.eps),
          decay = static_cast<T>(how.weight_decay);
#pragma GCC ivdep
  for (size_t i = 0; i < x.count; ++i) {
    const T g = x.g[i] + decay * x.p[i];
    const T sum = x.first[i] + g * g;
    x.first[i] = sum;
    x.p[i] -= rate * (g / (root(sum) + eps));
  }
}

// Sums squares in a fixed number of lanes, so that the sum is the same for every vector width.
template <typename T>
class SquareSum {
 public:
  void add(const T* x, size_t count) {
    const size_t whole = count / kLanes * kLanes;
    for (size_t i = 0; i < whole; i += kLanes) {
      Narrow loaded;
      __builtin_memcpy(&loaded, x + i, sizeof(loaded));
      const Wide wide = __builtin_convertvector(loaded, Wide);
      lanes_ += wide * wide;
    }
    for (size_t i = whole; i < count; ++i) {
      const double wide = static_cast<double>(x[i]);
      rest_ += wide * wide;
    }
  }

  double value() const {
    double sum = rest_;
    for (int lane = 0; lane < kLanes; ++lane) sum += lanes_[lane];
    return sum;
  }

 private:
  static constexpr int kLanes = 16;
  typedef T Narrow __attribute__((vector_size(kLanes * sizeof(T))));
  typedef double Wide __attribute__((vector_size(kLanes * sizeof(double))));

  Wide lanes_ = {};
  double rest_ = 0;
};

template <typename T>
Squares squares_of(const ParameterSpan& span) {
  const Elements<T> x(span);
  SquareSum<T> parameter, gradient;
  parameter.add(x.p, x.count);
  gradient.add(x.g, x.count);
  return {parameter.value(), gradient.value()};
}

template <typename T>
void lars_of(const ParameterSpan& span, const Lars& how) {
  const Elements<T> x(span);
  const T rate = static_cast<T>(how.rate), momentum = static_cast<T>(how.momentum),
          decay = static_cast<T>(how.weight_decay);
#pragma GCC ivdep
  for (size_t i = 0; i < x.count; ++i) {
    const T b = momentum * x.first[i] + rate * (x.g[i] + decay * x.p[i]);
    x.first[i] = b;
    x.p[i] -= b;
  }
}

template <typename T>
struct LambFactors {
  explicit LambFactors(const Lamb& how)
      : beta1(static_cast<T>(how.beta1)),
        beta2(static_cast<T>(how.beta2)),
        rest1(static_cast<T>(1 - how.beta1)),
        rest2(static_cast<T>(1 - how.beta2)),
        correction(static_cast<T>(how.correction)),
        inverse_root(static_cast<T>(how.inverse_root)),
        eps(static_cast<T>(how.eps)),
        decay(static_cast<T>(how.weight_decay)) {}

  T direction(T p, T m, T v) const {
    return correction * m / (root(v) * inverse_root + eps) + decay * p;
  }

  T beta1, beta2, rest1, rest2, correction, inverse_root, eps, decay;
};

template <typename T>
Squares lamb_moments_of(const ParameterSpan& span, const Lamb& how) {
  constexpr size_t kAtOnce = 512;
  const Elements<T> x(span);
  const LambFactors<T> f(how);
  SquareSum<T> parameter, direction;
  T u[kAtOnce];
  for (size_t begin = 0; begin < x.count; begin += kAtOnce) {
    const size_t length = x.count - begin < kAtOnce ? x.count - begin : kAtOnce;
    T* const m = x.first + begin;
    T* const v = x.second + begin;
    const T* const p = x.p + begin;
    const T* const g = x.g + begin;
#pragma GCC ivdep
    for (size_t i = 0; i < length; ++i) {
      m[i] = m[i] * f.beta1 + f.rest1 * g[i];
      v[i] = v[i] * f.beta2 + f.rest2 * g[i] * g[i];
      u[i] = f.direction(p[i], m[i], v[i]);
    }
    parameter.add(p, length);
    direction.add(u, length);
  }
  return {parameter.value(), direction.value()};
}

template <typename T>
void lamb_apply_of(const ParameterSpan& span, const Lamb& how, double rate) {
  const Elements<T> x(span);
  const LambFactors<T> f(how);
  const T by = static_cast<T>(rate);
#pragma GCC ivdep
  for (size_t i = 0; i < x.count; ++i) {
    x.p[i] -= by * f.direction(x.p[i], x.first[i], x.second[i]);
  }
}

template <typename T>
void adam_8bit_of(const Span8& span, const Adam& how) {
  const AdamFactors<T> step(how);
  T m[kBlock], v[kBlock];
  for (size_t begin = 0, block = 0; begin < span.count; begin += kBlock, ++block) {
    const size_t length = span.count - begin < kBlock ? span.count - begin : kBlock;
    T* const p = static_cast<T*>(span.parameter) + begin;
    const T* const g = static_cast<const T*>(span.gradient) + begin;
    unsigned char* const first = span.first + begin;
    unsigned char* const second = span.second + begin;
    float* const first_largest = span.first_largest + block;
    float* const second_largest = span.second_largest + block;
    decode_first(first, *first_largest, length, m);
    decode_second(second, *second_largest, length, v);
    if (!is_level(*first_largest) || !is_level(*second_largest)) {
      for (size_t i = 0; i < length; ++i) m[i] = v[i] = static_cast<T>(__builtin_nanf(""));
    }
#pragma GCC ivdep
    for (size_t i = 0; i < length; ++i) step(p[i], g[i], m[i], v[i]);
    encode_first(m, length, span.step, first, first_largest);
    encode_second(v, length, span.step, second, second_largest);
  }
}

void sgd(Type type, const ParameterSpan& span, const Sgd& how) {
  return type == Type::f32 ? sgd_of<float>(span, how) : sgd_of<double>(span, how);
}
void adam(Type type, const ParameterSpan& span, const Adam& how) {
  return type == Type::f32 ? adam_of<float>(span, how) : adam_of<double>(span, how);
}
void adagrad(Type type, const ParameterSpan& span, const Adagrad& how) {
  return type == Type::f32 ? adagrad_of<float>(span, how) : adagrad_of<double>(span, how);
}
Squares squares(Type type, const ParameterSpan& span) {
  return type == Type::f32 ? squares_of<float>(span) : squares_of<double>(span);
}
void lars(Type type, const ParameterSpan& span, const Lars& how) {
  return type == Type::f32 ? lars_of<float>(span, how) : lars_of<double>(span, how);
}
Squares lamb_moments(Type type, const ParameterSpan& span, const Lamb& how) {
  return type == Type::f32 ? lamb_moments_of<float>(span, how) : lamb_moments_of<double>(span, how);
}
void lamb_apply(Type type, const ParameterSpan& span, const Lamb& how, double rate) {
  return type == Type::f32 ? lamb_apply_of<float>(span, how, rate)
                           : lamb_apply_of<double>(span, how, rate);
}
void adam_8bit(Type type, const Span8& span, const Adam& how) {
  return type == Type::f32 ? adam_8bit_of<float>(span, how) : adam_8bit_of<double>(span, how);
}

}  // namespace

extern const Kernels TROIKA_KERNELS;
const Kernels TROIKA_KERNELS{sgd,  adam,         adagrad,    squares,
                             lars, lamb_moments, lamb_apply, adam_8bit};

}  // namespace troika::optim::kernels
