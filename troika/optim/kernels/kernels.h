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

// Moments of Adam in 8 bits, in blocks of kBlock elements. A code counts positions on a grid of
// floats with 3 bits of mantissa (8 levels an octave; the upper 12 bits of a float32), down from
// the level of the block, `largest`, which is the block's largest magnitude rounded up to the grid:
// - Second moment: code 255 is `largest`, and each code below it is the next smaller level, over
//   31.75 octaves (a factor of 3.6e9). Code 0 is zero and nothing else: smaller moments take
//   code 1.
// - First moment: bit 7 is the sign. Code 127 is `largest`, over 15.75 octaves (5.5e4). Code 0 is
//   zero. Smaller moments become zero or code 1 at random, with their mean kept.
// Rounding is up or down at random, with the mean kept: rounding to the nearest would hold a moving
// average where it is, since one step moves it by less than half of a level. The random numbers
// follow from the number of the step and the place in the block alone (a golden-ratio sequence over
// steps), so they depend neither on threads nor on how a tensor is cut into shards at blocks.
// A moment that is not a number makes its whole block so (`largest` is NaN); so does an infinite
// first moment. A second moment beyond the range of float32 stays at its largest number.
constexpr int kBlock = 256;
struct Span8 {
  void* parameter;
  const void* gradient;
  unsigned char* first;
  float* first_largest;  // one per block
  unsigned char* second;
  float* second_largest;
  size_t count;
  unsigned step;  // the lower bits of the number of steps made, with this one
};

struct Kernels {
  void (*sgd)(Type, const Span&, const Sgd&);
  void (*adam)(Type, const Span&, const Adam&);
  void (*adagrad)(Type, const Span&, const Adagrad&);
  Squares (*squares)(Type, const Span&);  // of parameter and gradient
  void (*lars)(Type, const Span&, const Lars&);
  Squares (*lamb_moments)(Type, const Span&, const Lamb&);  // of parameter and direction
  void (*lamb_apply)(Type, const Span&, const Lamb&, double rate);
  void (*adam_8bit)(Type, const Span8&, const Adam&);
};

extern const Kernels kBaseline;
// Where TROIKA_X86_KERNELS is defined.
extern const Kernels kAvx2;
extern const Kernels kAvx512;

// The best this processor can run.
const Kernels& best();

}  // namespace troika::optim::kernels
