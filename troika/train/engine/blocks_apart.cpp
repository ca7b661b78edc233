#include "troika/train/engine/blocks_apart.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/compat/deferred_init.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/storage.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/precision.h"
#include "troika/nn/state.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

// Blocks until the device has done all that was queued.
void wait_for(at::Device device) {
  if (!device.is_cpu()) at::zeros({1}, at::TensorOptions(device)).item<float>();
}

// Gives the tensor memory; weights get numbers that neither grow nor vanish from block to block.
void make_memory(const at::Tensor& tensor) {
  compat::give_memory(tensor, at::empty({tensor.numel()}, tensor.options().requires_grad(false)));
  const at::NoGradGuard no_grad;
  if (!at::isFloatingType(tensor.scalar_type())) {
    tensor.zero_();
    return;
  }
  const int64_t inputs = tensor.dim() > 1
                             ? std::max(tensor.size(0), tensor.numel() / tensor.size(0))
                             : std::max<int64_t>(1, tensor.numel());
  const double most = std::sqrt(3.0 / static_cast<double>(inputs));
  tensor.uniform_(-most, most);
}

}  // namespace

BlocksApart::BlocksApart(Task& task, const compat::DeferredInit& values, const Placement& placement,
                         const data::Batch& batch)
    : task_(task),
      values_(values),
      placement_(placement),
      batch_(batch),
      stages_(task.blocks(), each_block(task.blocks())),
      keys_(std::make_shared<nn::SampleKeys>(nn::some_samples(batch.size()))),
      seconds_(stages_.size()) {
  const auto& wiring = task.blocks().wiring();
  const auto inputs = task.block_inputs(batch);
  const auto slots = wiring.into(0, stages_.size());
  const auto names = wiring.names(slots);
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto name = std::ranges::find(wiring.input_names(), names[i]);
    tensors_[slots[i]] = inputs[static_cast<size_t>(name - wiring.input_names().begin())];
  }
}

void BlocksApart::for_large_tensors(const std::function<void(const at::Tensor&)>& use) const {
  std::set<compat::DeferredInit::Key> seen;
  const auto names = parallel::tensors_of_blocks(task_.blocks(), next_, next_ + 1);
  for (const auto& [name, tensor] : nn::named_state(task_.module(), nn::Ties::every_name)) {
    if (!names.contains(name) || !values_.has(tensor)) continue;
    if (seen.insert(compat::DeferredInit::key(tensor)).second) use(tensor);
  }
}

nn::Tensors BlocksApart::inputs() const {
  nn::Tensors result;
  for (const auto& input : stages_[static_cast<int>(next_)].takes) {
    result.push_back(tensors_.at(input.slot));
  }
  return result;
}

nn::Tensors BlocksApart::forward() {
  const auto& model = task_.blocks();
  const nn::KeyedDraws draws(keys_);
  const nn::Autocast autocast(placement_.precision, placement_.device.type());
  const auto loss = is_last() && model.has_output_layer() ? task_.output_loss(batch_) : nullptr;
  auto outputs = passes_->forward(0, inputs(), loss, is_last());
  if (is_last()) {
    passes_->start_from(0, task_.finish_training(std::move(outputs), loss != nullptr, batch_));
    return {};
  }
  return outputs;
}

void BlocksApart::enter() {
  TROIKA_CHECK(next_ < stages_.size() && !passes_, "a block is entered after the one before");
  for_large_tensors(make_memory);
  passes_.emplace(task_.blocks(), stages_[static_cast<int>(next_)]);
  const at::AutoGradMode with_gradients(true);
  task_.module().train();
  outputs_ = forward();
  gradients_.clear();
  if (!is_last()) {
    const auto has_gradient = passes_->differentiable_outputs(0);
    for (size_t i = 0; i < outputs_.size(); ++i) {
      gradients_.push_back(has_gradient[i] ? at::ones_like(outputs_[i]) : at::Tensor());
    }
  }
  passes_->backward(0, gradients_);
}

double BlocksApart::run(Round round) {
  const at::AutoGradMode with_gradients(true);
  auto& times = seconds_[next_];
  wait_for(placement_.device);
  double sum = 0;
  Stopwatch watch;
  const auto note = [&](std::vector<double>& list) {
    wait_for(placement_.device);
    sum += watch.seconds();
    if (round != Round::extra) list.push_back(watch.seconds());
    watch.restart();
  };
  std::vector<double> unused;
  forward();
  note(round == Round::whole ? times.forward : unused);
  const nn::KeyedDraws draws(keys_);
  if (round == Round::split) {
    passes_->backward_input(0, gradients_);
    note(times.backward_input);
    passes_->backward_weight(0);
    note(times.backward_weight);
  } else {
    passes_->backward(0, gradients_);
    note(times.backward);
  }
  return sum;
}

BlockProducts BlocksApart::count_products() {
  const at::AutoGradMode with_gradients(true);
  const compat::FlopCounter counter;
  forward();
  const auto of_forward = counter.works().size();
  {
    const nn::KeyedDraws draws(keys_);
    passes_->backward(0, gradients_);
  }
  BlockProducts result;
  const auto works = counter.works();
  for (size_t i = 0; i < works.size(); ++i) {
    (i < of_forward ? result.forward : result.backward)
        .push_back({static_cast<double>(works[i].flops), static_cast<double>(works[i].bytes)});
  }
  return result;
}

void BlocksApart::leave() {
  TROIKA_CHECK(passes_.has_value(), "a block has been entered");
  passes_.reset();
  gradients_.clear();
  task_.module().zero_grad(/*set_to_none=*/true);
  for_large_tensors(compat::release_memory);
  const auto& gives = stages_[static_cast<int>(next_)].gives;
  for (size_t i = 0; i < outputs_.size(); ++i) tensors_[gives[i]] = outputs_[i];
  outputs_.clear();
  ++next_;
  std::erase_if(tensors_, [&](const auto& entry) {
    for (size_t later = next_; later < stages_.size(); ++later) {
      const auto& takes = stages_[static_cast<int>(later)].takes;
      const auto taken = std::ranges::find(takes, entry.first, &parallel::StageInput::slot);
      if (taken != takes.end()) return taken->from >= static_cast<int>(next_);
    }
    return true;
  });
}

}  // namespace troika::train
