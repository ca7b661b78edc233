#include "troika/nn/gelu.h"

#include <torch/library.h>

#include "troika/compat/autograd.h"
#include "troika/compat/compute_threads.h"
#include "troika/compat/torch.h"
#include "troika/nn/kernels/numbers.h"

namespace troika::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 1 << 14;

// Registered with the dispatcher, so that compat::FakeTensorGuard can skip them.
at::Tensor& gelu_out(const at::Tensor& x, at::Tensor& out) {
  const auto number = kernels::number_of(x);
  compat::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::best().gelu(number, kernels::at_element(x, begin), kernels::at_element(out, begin),
                         static_cast<size_t>(end - begin));
  });
  return out;
}

at::Tensor& gelu_backward_out(const at::Tensor& gradient, const at::Tensor& x, at::Tensor& out) {
  const auto number = kernels::number_of(x);
  compat::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::best().gelu_backward(number, kernels::at_element(gradient, begin),
                                  kernels::at_element(x, begin), kernels::at_element(out, begin),
                                  static_cast<size_t>(end - begin));
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(troika, library) {
  library.def("gelu(Tensor x, Tensor(a!) out) -> Tensor(a!)");
  library.def("gelu_backward(Tensor gradient, Tensor x, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(troika, CPU, library) {
  library.impl("gelu", gelu_out);
  library.impl("gelu_backward", gelu_backward_out);
}

const auto& gelu_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("troika::gelu", "")
                             .typed<at::Tensor&(const at::Tensor&, at::Tensor&)>();
  return op;
}

const auto& gelu_backward_operator() {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("troika::gelu_backward", "")
          .typed<at::Tensor&(const at::Tensor&, const at::Tensor&, at::Tensor&)>();
  return op;
}

class Gelu : public torch::autograd::Function<Gelu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    at::Tensor out = at::empty_like(x);
    return gelu_operator().call(x, out);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    compat::refuse_create_graph("nn::gelu_tanh");
    const at::Tensor x = context->get_saved_variables()[0];
    at::Tensor out = at::empty_like(x);
    gelu_backward_operator().call(gradients[0].contiguous(), x, out);
    return {out};
  }
};

}  // namespace

at::Tensor gelu_tanh(const at::Tensor& input) {
  if (!kernels::takes(input)) return at::gelu(input, "tanh");
  return Gelu::apply(input.contiguous());
}

}  // namespace troika::nn
