// The inner loops of the optimizers, compiled once per instruction set. These files include no
// headers with inline functions: the linker could otherwise choose a copy that was compiled for a
// newer processor.
//
// Every element is computed with the same roundings in the same order for every vector width (no
// fused multiply-add, sums in a fixed number of lanes), so all instruction sets give the same bits.
#pragma once

#include <cstddef>

namespace troika::optim::kernels {

enum class Type { f32, f64 };

// `count` elements of a parameter, its gradient and its states. A state is null if the method lacks
// it. The arrays do not overlap.
struct ParameterSpan {
  void* parameter;
  const void* gradient;
  void* first;
  void* second;
  size_t count;
};

// g += weight_decay p; b = momentum b + g; p -= rate (nesterov ? g + momentum b : b). Without a
// buffer b (ParameterSpan::first is null), p -= rate g.
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

// Sums of squares of a parameter and of its gradient or direction.
struct Squares {
  double parameter, other;
};

// Adam's moments in 8 bits, in blocks of kBlock elements. A code is a position on a grid of floats
// with 3 bits of mantissa (8 levels per octave; the upper 12 bits of a float32), counted down from
// `largest`, the level of the block: its largest magnitude rounded up to the grid.
// - Second moment: code 255 is `largest`, and each code below it is the next smaller level, over
//   31.75 octaves (a factor of 3.6e9). Code 0 is used only for zero: smaller moments take code 1.
// - First moment: bit 7 is the sign. Code 127 is `largest`, over 15.75 octaves (5.5e4). Code 0 is
//   zero. Smaller moments become zero or code 1 at random, unbiased.
// Rounding is up or down at random, unbiased: rounding to the nearest would freeze a moving
// average, since one step moves it by less than half of a level. The random numbers depend only on
// the number of the step and the place in the block (a golden-ratio sequence over steps), so they
// do not depend on threads or on sharding at block boundaries.
// A NaN moment makes its whole block NaN (`largest` is NaN), and so does an infinite first moment.
// A second moment beyond the range of float32 saturates at its largest number.
constexpr int kBlock = 256;
struct Span8 {
  void* parameter;
  const void* gradient;
  unsigned char* first;
  float* first_largest;  // one per block
  unsigned char* second;
  float* second_largest;
  size_t count;
  unsigned step;  // the lower bits of the step count, this step included
};

struct Kernels {
  void (*sgd)(Type, const ParameterSpan&, const Sgd&);
  void (*adam)(Type, const ParameterSpan&, const Adam&);
  void (*adagrad)(Type, const ParameterSpan&, const Adagrad&);
  Squares (*squares)(Type, const ParameterSpan&);  // sums for parameter and gradient
  void (*lars)(Type, const ParameterSpan&, const Lars&);
  Squares (*lamb_moments)(Type, const ParameterSpan&,
                          const Lamb&);  // sums for parameter and direction
  void (*lamb_apply)(Type, const ParameterSpan&, const Lamb&, double rate);
  void (*adam_8bit)(Type, const Span8&, const Adam&);
};

extern const Kernels kBaseline;
// Defined if TROIKA_X86_KERNELS is set.
extern const Kernels kAvx2;
extern const Kernels kAvx512;

// Returns the kernels for the best instruction set of this processor.
const Kernels& best();

}  // namespace troika::optim::kernels
