#include "troika/optim/master_weights.h"

#include <ATen/ATen.h>

#include <utility>

#include "troika/base/error.h"

namespace troika::optim {

namespace {

bool is_half(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

void require_half(const Parameter& parameter, c10::Device device) {
  const auto type = parameter.tensor.scalar_type();
  if (is_half(type) || parameter.tensor.device() != device) return;
  throw Error("optim", ErrorKind::usage,
              {.what = "master weights are for half precision",
               .got = parameter.name + " of " + c10::toString(type),
               .expected = "Half or BFloat16"});
}

}  // namespace

MasterWeights::MasterWeights(std::vector<Parameter> parameters, c10::Device device)
    : parameters_(std::move(parameters)) {
  const at::NoGradGuard no_grad;
  int64_t size = 0;
  for (const auto& parameter : parameters_) {
    require_half(parameter, device);
    size += parameter.tensor.numel();
  }
  if (parameters_.empty()) return;
  const auto type = parameters_[0].tensor.scalar_type();
  const auto options = at::TensorOptions().dtype(is_half(type) ? at::kFloat : type).device(device);
  const auto weights = at::empty({size}, options);
  const auto gradients = at::empty({size}, options);
  int64_t begin = 0;
  for (const auto& [name, tensor, decay, box] : parameters_) {
    const auto part = [&, begin](const at::Tensor& whole) {
      return view_like(whole, begin, tensor);
    };
    masters_.push_back({name, part(weights).copy_(tensor), decay, box});
    gradients_.push_back(part(gradients));
    begin += tensor.numel();
  }
}

void MasterWeights::take_gradients() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor gradient = parameters_[i].tensor.grad();
    masters_[i].tensor.mutable_grad() =
        gradient.defined() ? gradients_[i].copy_(gradient) : at::Tensor();
  }
}

void MasterWeights::give_weights() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = parameters_[i].tensor;
    parameter.copy_(masters_[i].tensor);
  }
}

}  // namespace troika::optim
