#include "troika/optim/device_step.h"

#include <ATen/ATen.h>

namespace troika::optim {

namespace {

std::vector<at::Tensor> with_decay(const DeviceTensors& tensors, double weight_decay) {
  if (weight_decay == 0) return tensors.gradients;
  return at::_foreach_add(tensors.gradients, tensors.parameters, weight_decay);
}

}  // namespace

void step_on_device(const DeviceTensors& tensors, const kernels::Sgd& how) {
  auto gradients = with_decay(tensors, how.weight_decay);
  if (!tensors.first.empty()) {
    at::_foreach_mul_(tensors.first, how.momentum);
    at::_foreach_add_(tensors.first, gradients);
    gradients =
        how.nesterov ? at::_foreach_add(gradients, tensors.first, how.momentum) : tensors.first;
  }
  at::_foreach_add_(tensors.parameters, gradients, -how.rate);
}

void step_on_device(const DeviceTensors& tensors, const kernels::Adam& how) {
  if (how.shrink != 1) at::_foreach_mul_(tensors.parameters, how.shrink);
  const auto gradients = with_decay(tensors, how.weight_decay);
  at::_foreach_mul_(tensors.first, how.beta1);
  at::_foreach_add_(tensors.first, gradients, 1 - how.beta1);
  at::_foreach_mul_(tensors.second, how.beta2);
  at::_foreach_addcmul_(tensors.second, gradients, gradients, 1 - how.beta2);
  const auto roots = at::_foreach_sqrt(tensors.second);
  at::_foreach_mul_(roots, how.inverse_root);
  at::_foreach_add_(roots, how.eps);
  at::_foreach_addcdiv_(tensors.parameters, tensors.first, roots, -how.step_size);
}

void step_on_device(const DeviceTensors& tensors, const kernels::Adagrad& how) {
  const auto gradients = with_decay(tensors, how.weight_decay);
  at::_foreach_addcmul_(tensors.first, gradients, gradients, 1);
  const auto roots = at::_foreach_sqrt(tensors.first);
  at::_foreach_add_(roots, how.eps);
  at::_foreach_addcdiv_(tensors.parameters, gradients, roots, -how.rate);
}

}  // namespace troika::optim
