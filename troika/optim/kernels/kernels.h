// The inner loops of the optimizers, compiled once per instruction set. These files include nothing
// that could leave an inline function compiled for one processor to be linked into code for all.
//
// Every element is computed by the same roundings in the same order whatever the vector width (no
// fused multiply-add, sums in a fixed number of lanes), so the instruction sets give the same bits.
#pragma once

#include <cstddef>

namespace troika::optim::kernels {

enum class Type { f32, f64 };

// `count` elements of a parameter, its gradient and its states. A state that the method lacks is
// null. None of them overlap.
struct Span {
  void* parameter;
  const void* gradient;
  void* first;
  void* second;
  size_t count;
};

// g += weight_decay p; b = momentum b + g; p -= rate (nesterov ? g + momentum b : b). Without a
// buffer b (Span::first), p -= rate g.
struct Sgd {
  double rate, momentum, weight_decay;
  bool nesterov;
};

// p *= shrink; g += weight_decay p; m and v are the moving averages of g and g^2;
// p -= step_size m / (inverse_root sqrt(v) + eps).
struct Adam {
  double beta1, beta2, step_size, inverse_root, eps, weight_decay, shrink;
};

// g += weight_decay p; s += g^2; p -= rate g / (sqrt(s) + eps).
struct Adagrad {
  double rate, eps, weight_decay;
};

// b = momentum b + rate (g + weight_decay p); p -= b.
struct Lars {
  double rate, momentum, weight_decay;
};

// The direction u = correction m / (inverse_root sqrt(v) + eps) + weight_decay p.
struct Lamb {
  double beta1, beta2, correction, inverse_root, eps, weight_decay;
};

// Sums of the squares of a parameter and of what goes with it.
struct Squares {
  double parameter, other;
};

// Moments in 8 bits: an element is levels[code] of its sign times the largest magnitude of its
// block. `place` maps the upper 16 bits of a float in [2^-24, 1], less kFirstPlace, to the least
// level that is nearest to one of the floats with these bits; at most one more can be, the one
// above, beyond `middle[level]`.
constexpr int kBlock = 2048;
constexpr unsigned kFirstPlace = 103u << 7;  // the upper bits of 2^-24
constexpr int kPlaces = 24 * 128 + 1;
struct Code {
  float decode[256];
  float middle[257];  // between level i and i + 1; never reached above the last
  int place[kPlaces];
  int zero;  // the code of level 0; negative levels lie below it
};
struct Span8 {
  void* parameter;
  const void* gradient;
  unsigned char* first;
  float* first_largest;  // one per block
  unsigned char* second;
  float* second_largest;
  size_t count;
};

struct Kernels {
  void (*sgd)(Type, const Span&, const Sgd&);
  void (*adam)(Type, const Span&, const Adam&);
  void (*adagrad)(Type, const Span&, const Adagrad&);
  Squares (*squares)(Type, const Span&);  // of parameter and gradient
  void (*lars)(Type, const Span&, const Lars&);
  Squares (*lamb_moments)(Type, const Span&, const Lamb&);  // of parameter and direction
  void (*lamb_apply)(Type, const Span&, const Lamb&, double rate);
  void (*adam_8bit)(Type, const Span8&, const Adam&, const Code& first, const Code& second);
};

extern const Kernels kBaseline;
// Where TROIKA_X86_KERNELS is defined.
extern const Kernels kAvx2;
extern const Kernels kAvx512;

// The best this processor can run.
const Kernels& best();

}  // namespace troika::optim::kernels
