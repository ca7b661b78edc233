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
  if (root.numel() != 1) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a backward pass starts from a loss of one element",
                 .got = std::to_string(root.numel()),
                 .expected = "1, the mean over the micro-batch"});
  }
  active_.at(micro_batch).roots = {root};
}

std::vector<bool> StagePasses::differentiable_outputs(int micro_batch) const {
  std::vector<bool> result;
  for (const auto& root : active_.at(micro_batch).roots) {
    result.push_back(at::isFloatingType(root.scalar_type()));
  }
  return result;
}

StagePasses::Active StagePasses::take(int micro_batch) {
  auto found = active_.extract(micro_batch);
  TROIKA_CHECK(!found.empty(), "a backward pass follows its forward pass");
  return std::move(found.mapped());
}

StagePasses::Roots StagePasses::roots_of(const Active& active, const nn::Tensors& gradients) {
  Roots result;
  for (size_t i = 0; i < active.roots.size(); ++i) {
    if (!active.roots[i].requires_grad()) continue;
    if (!gradients.empty()) {
      if (!gradients[i].defined()) continue;
      result.gradients.push_back(gradients[i]);
    }
    result.outputs.push_back(active.roots[i]);
  }
  return result;
}

bool StagePasses::has_gradient(size_t input, const at::Tensor& tensor) const {
  return stage_.takes[input].is_trained && tensor.requires_grad();
}

nn::Tensors StagePasses::backward(int micro_batch, const nn::Tensors& gradients) {
  const auto active = take(micro_batch);
  const auto roots = roots_of(active, gradients);
  if (!roots.outputs.empty()) torch::autograd::backward(roots.outputs, roots.gradients);
  nn::Tensors result;
  for (size_t i = 0; i < active.inputs.size(); ++i) {
    const auto& input = active.inputs[i];
    auto& of_input = result.emplace_back();
    if (!has_gradient(i, input)) continue;
    of_input = input.grad().defined() ? input.grad() : at::zeros_like(input);
  }
  return result;
}

nn::Tensors StagePasses::backward_input(int micro_batch, const nn::Tensors& gradients) {
  const auto active = take(micro_batch);
  const auto roots = roots_of(active, gradients);
  nn::Tensors inputs;
  for (size_t i = 0; i < active.inputs.size(); ++i) {
    if (has_gradient(i, active.inputs[i])) inputs.push_back(active.inputs[i]);
  }
  auto& half =
      halves_.try_emplace(micro_batch, roots.outputs, roots.gradients, inputs).first->second;
  const auto of_inputs = half.take_inputs();
  nn::Tensors result;
  size_t next = 0;
  for (size_t i = 0; i < active.inputs.size(); ++i) {
    auto& of_input = result.emplace_back();
    if (!has_gradient(i, active.inputs[i])) continue;
    of_input = of_inputs[next++];
    if (!of_input.defined()) of_input = at::zeros_like(active.inputs[i]);
  }
  return result;
}

nn::Tensors StagePasses::weight_part_gradients(int micro_batch) const {
  return halves_.at(micro_batch).gradients();
}

void StagePasses::backward_weight(int micro_batch) {
  auto found = halves_.extract(micro_batch);
  TROIKA_CHECK(!found.empty(), "a weight part follows its input part");
  found.mapped().run_weights();
}

}  // namespace troika::parallel
