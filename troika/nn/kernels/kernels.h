// Inner loops for operations where LibTorch's own kernels are slow on CPUs, compiled once per
// instruction set. As in optim/kernels/kernels.h, these files include no headers with inline
// functions, and every result is computed with the same roundings in the same order for every
// vector width.
#pragma once

#include <cstddef>

namespace troika::nn::kernels {

// The type of the values that are read and written; computations are in float32.
enum class Number { f32, bf16 };

// A contiguous batch of matrices of `rows` x `columns`. Row r has the position first + r and sees
// the columns 0 .. first + r.
struct CausalRows {
  size_t rows;
  size_t columns;
  size_t first;
};

struct LogitSums {
  float sum;         // of exp(logit - greatest logit)
  float below_most;  // greatest logit - the target's logit
};

struct Kernels {
  // out = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): GELU by its tanh (Hendrycks and
  // Gimpel 2016, arXiv 1606.08415, section 2).
  void (*gelu)(Number, const void* x, void* out, size_t count);
  // out = gradient times the derivative of gelu at x.
  void (*gelu_backward)(Number, const void* gradient, const void* x, void* out, size_t count);
  // Replaces rows begin .. end - 1 of the batch by the softmax of `scale` times the visible
  // columns, and sets the other columns to 0. `scratch` holds `columns` values.
  void (*causal_softmax)(Number, void* scores, const CausalRows&, float scale, float* scratch,
                         size_t begin, size_t end);
  // Replaces the gradients of a causal_softmax that returned `weights` by the gradients of its
  // input. `scratch` holds `columns` values.
  void (*causal_softmax_backward)(Number, void* gradients, const void* weights, const CausalRows&,
                                  float scale, float* scratch, size_t begin, size_t end);
  // Replaces a row of logits by `scale` times the gradient of its cross entropy for `target`. The
  // cross entropy is log(sum) + below_most of the result. `scratch` holds `columns` values.
  LogitSums (*softmax_gradient)(Number, void* logits, size_t columns, size_t target, float scale,
                                float* scratch);
  // out = scale * x where the hash of key and element number is at least `threshold`, else 0.
  // Elements are numbered from `first`.
  void (*dropout)(Number, const void* x, void* out, unsigned long key, unsigned first,
                  unsigned threshold, float scale, size_t count);
};

extern const Kernels kBaseline;
// Defined if TROIKA_X86_KERNELS is set.
extern const Kernels kAvx2, kAvx512;

// Returns the kernels with the widest vectors that this processor supports.
const Kernels& best();

}  // namespace troika::nn::kernels
