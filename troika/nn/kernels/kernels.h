// The inner loops of blocks that LibTorch's own kernels are slow at on CPUs, compiled once per
// instruction set. Like optim/kernels/kernels.h, these files include nothing inline, and every
// number is computed by the same roundings in the same order whatever the vector width.
#pragma once

#include <cstddef>

namespace troika::nn::kernels {

// The type of the numbers that are read and written; all is computed in float32.
enum class Number { f32, bf16 };

// A batch of matrices of `rows` x `columns`, one after another. Row r is of position first + r,
// which sees the columns 0 .. first + r.
struct CausalRows {
  size_t rows;
  size_t columns;
  size_t first;
};

struct LogitSums {
  float sum;         // of the exponentials of logits less the greatest one
  float below_most;  // how far the target's logit is below the greatest one
};

struct Kernels {
  // out = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): GELU by its tanh (Hendrycks and
  // Gimpel 2016, arXiv 1606.08415, section 2).
  void (*gelu)(Number, const void* x, void* out, size_t count);
  // out = gradient times the derivative of that at x.
  void (*gelu_backward)(Number, const void* gradient, const void* x, void* out, size_t count);
  // Rows begin .. end - 1 of the batch become the softmax of scale times what their positions see,
  // and 0 elsewhere. `scratch` holds `columns` numbers.
  void (*causal_softmax)(Number, void* scores, const CausalRows&, float scale, float* scratch,
                         size_t begin, size_t end);
  // Gradients of a causal_softmax that gave `weights` become those of what it was given, with the
  // same scratch.
  void (*causal_softmax_backward)(Number, void* gradients, const void* weights, const CausalRows&,
                                  float scale, float* scratch, size_t begin, size_t end);
  // A row of logits becomes `scale` times the gradient of its cross entropy for `target`, which is
  // log(sum) + below_most of what this gives. `scratch` holds `columns` numbers.
  LogitSums (*softmax_gradient)(Number, void* logits, size_t columns, size_t target, float scale,
                                float* scratch);
  // out = scale times x where the hash of key and number is at least `threshold`, else 0. Numbers
  // count on from `first`.
  void (*dropout)(Number, const void* x, void* out, unsigned long key, unsigned first,
                  unsigned threshold, float scale, size_t count);
};

extern const Kernels kBaseline;
// Where TROIKA_X86_KERNELS is defined.
extern const Kernels kAvx2, kAvx512;

// The widest that this processor has.
const Kernels& best();

}  // namespace troika::nn::kernels
