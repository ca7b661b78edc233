#include "troika/train/memory/cut_layers.h"

#include <utility>

#include "troika/comm/local/lone_rank.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"

namespace troika::train {

CutLayers::CutLayers(nn::Model& model, const parallel::SplitTable& table, int ranks, bool sequence,
                     std::function<void(const comm::Call&)> observe) {
  if (!observe) observe = [](const comm::Call&) {};
  const compat::FakeTensorGuard no_memory;
  tensor_.emplace(model, comm::local::lone_rank(ranks, std::move(observe)), table,
                  parallel::TensorOptions{.sequence = sequence});
}

CutLayers::~CutLayers() {
  if (!tensor_) return;
  const compat::FakeTensorGuard no_memory;
  const at::NoGradGuard no_grad;
  for (const auto& [cut, tensor] : tensor_->parameters()) {
    if (cut.is_whole()) continue;
    at::Tensor parameter = tensor;
    parameter.mutable_grad().reset();
    parameter.set_data(at::empty(cut.shape, parameter.options().requires_grad(false)));
  }
}

}  // namespace troika::train
