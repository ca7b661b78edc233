// Autocast of the pretend device: casts for the operators of LibTorch's lists that models of the
// tests use. Casts are not cached.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "tests/pretend_device/operators.h"
#include "troika/compat/autocast.h"

namespace troika::pretend {

namespace {

bool is_cast(const at::Tensor& tensor) {
  return is_on_device(tensor) && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
}

void run_in(at::ScalarType type, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(kAutocastKey);
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor() && is_cast(stack[i].toTensor())) {
      stack[i] = stack[i].toTensor().to(type);
    }
  }
  op.callBoxed(&stack);
}

void run_in_half(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_in(compat::autocast_state(c10::kPrivateUse1).type, op, *stack);
}
void run_in_float(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_in(at::kFloat, op, *stack);
}

void register_kernels(torch::Library& library) {
  for (const char* name : {"addmm", "bmm", "baddbmm", "convolution", "linear", "matmul", "mm"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_in_half>());
  }
  for (const char* name :
       {"binary_cross_entropy_with_logits", "cross_entropy_loss", "exp", "layer_norm", "log",
        "log_softmax.int", "mse_loss", "nll_loss", "softmax.int", "sum", "sum.dim_IntList"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_in_float>());
  }
}

#if TROIKA_TORCH_VERSION >= 204
#define AUTOCAST_KEY AutocastPrivateUse1
#else
#define AUTOCAST_KEY AutocastXPU
#endif
TORCH_LIBRARY_IMPL(aten, AUTOCAST_KEY, library) {
  register_kernels(library);
}
TORCH_LIBRARY_IMPL(_, AUTOCAST_KEY, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace

}  // namespace troika::pretend
