#include "troika/nn/rms_norm.h"

#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType wide_type(const at::Tensor& x) {
  return at::promote_types(x.scalar_type(), at::kFloat);
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const at::Tensor wide = x.to(wide_type(x));
    const at::Tensor scale = wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
    context->save_for_backward({x, weight, scale});
    return wide.mul(scale).to(x.scalar_type()).mul(weight);
  }

  // With n = x * scale: the gradient of n is g = gradient * weight, and that of x is
  // scale * (g - n * mean(g * n)).
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    compat::refuse_create_graph("nn::rms_norm");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &scale = saved[2];
    const auto type = wide_type(x);
    const at::Tensor normal = x.to(type).mul(scale), gradient = gradients[0].to(type);
    const at::Tensor of_weight =
        gradient.mul(normal).flatten(0, -2).sum(0).to(weight.scalar_type());
    const at::Tensor of_normal = gradient.mul(weight.to(type));
    const at::Tensor along = of_normal.mul(normal).mean(-1, /*keepdim=*/true);
    return {of_normal.sub(normal.mul(along)).mul_(scale).to(x.scalar_type()), of_weight, {}};
  }
};

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    compat::refuse_create_graph("nn::swiglu");
    const auto saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], &gradient = gradients[0];
    return {at::silu_backward(gradient.mul(up), gate), at::silu(gate).mul_(gradient)};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluFunction::apply(gate, up);
}

RmsNorm::RmsNorm(int64_t width, double eps)
    : weight_(register_parameter("weight", torch::ones({width}))), eps_(eps) {}

}  // namespace troika::nn
