#include "troika/parallel/pipeline/stage_passes.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

nn::Tensors StagePasses::forward(int micro_batch, nn::Tensors inputs,
                                 std::shared_ptr<const nn::OutputLoss> loss, bool is_last_stage) {
  const bool keeps_graph = at::GradMode::is_enabled();
  Active active;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!stage_.takes[i].is_trained || !keeps_graph) continue;
    if (!at::isFloatingType(inputs[i].scalar_type())) continue;
    inputs[i] = inputs[i].detach().requires_grad_();
  }
  if (keeps_graph) active.inputs = inputs;
  auto outputs = stage_.has_blocks()
                     ? model_.forward(stage_.begin, stage_.end, std::move(inputs), std::move(loss))
                     : std::move(inputs);
  if (is_last_stage) {
    if (keeps_graph) active_[micro_batch] = std::move(active);
    return outputs;
  }
  if (keeps_graph) {
    active.roots = outputs;
    active_[micro_batch] = std::move(active);
  }
  for (auto& output : outputs) output = output.detach();
  return outputs;
}

void StagePasses::start_from(int micro_batch, const at::Tensor& root) {
  active_.at(micro_batch).roots = {root};
}

std::vector<bool> StagePasses::differentiable_outputs(int micro_batch) const {
  std::vector<bool> result;
  for (const auto& root : active_.at(micro_batch).roots) {
    result.push_back(at::isFloatingType(root.scalar_type()));
  }
  return result;
}

nn::Tensors StagePasses::backward(int micro_batch, const nn::Tensors& gradients) {
  const auto found = active_.find(micro_batch);
  TROIKA_CHECK(found != active_.end(), "a backward pass follows its forward pass");
  const auto active = std::move(found->second);
  active_.erase(found);
  nn::Tensors roots, of_roots;
  for (size_t i = 0; i < active.roots.size(); ++i) {
    const bool is_start = gradients.empty();
    if (!active.roots[i].requires_grad() || (!is_start && !gradients[i].defined())) continue;
    roots.push_back(active.roots[i]);
    if (!is_start) of_roots.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, of_roots);
  nn::Tensors result;
  for (size_t i = 0; i < active.inputs.size(); ++i) {
    const auto& input = active.inputs[i];
    const bool has_gradient = stage_.takes[i].is_trained && input.requires_grad();
    if (!has_gradient) {
      result.emplace_back();
    } else {
      result.push_back(input.grad().defined() ? input.grad() : at::zeros_like(input));
    }
  }
  return result;
}

}  // namespace troika::parallel
