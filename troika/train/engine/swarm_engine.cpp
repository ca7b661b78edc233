#include "troika/train/engine/swarm_engine.h"

#include <algorithm>
#include <utility>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/observe/step_times.h"
#include "troika/train/task/task.h"

namespace troika::train {

SwarmEngine::SwarmEngine(const EngineSetup& setup)
    : SwarmSteps(setup), gradients_(dynamic_cast<parallel::SwarmExchange&>(exchange())) {
  keep_buffers();
}

void SwarmEngine::keep_buffers() {
  for (const auto& [name, buffer] : nn::named_buffers(setup().task.module())) {
    buffers_[name] = buffer.detach().clone();
  }
}

void SwarmEngine::show_kept_buffers() {
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : nn::named_buffers(setup().task.module())) {
    buffer.copy_(buffers_.at(name));
  }
}

checkpoint::RankState SwarmEngine::state(bool in_step) const {
  auto state = SingleStageEngine::state(in_step);
  for (auto& entry : state.model) {
    const auto kept = buffers_.find(entry.first);
    if (kept != buffers_.end()) entry.second = kept->second;
  }
  return state;
}

std::function<void()> SwarmEngine::load(const checkpoint::CheckpointReader& saved,
                                        const checkpoint::NamedTensors& gradients) {
  return [this, take = SingleStageEngine::load(saved, gradients)] {
    take();
    keep_buffers();
  };
}

at::Tensor SwarmEngine::contribution(Portion& own) {
  if (own.micro_batches == 0) {
    // A pause: there are those of the last step.
    for (const auto& parameter : gradients_.parameters()) parameter.tensor.mutable_grad().reset();
  }
  auto values =
      gradients_.gather(1.0 / static_cast<double>(std::max<int64_t>(1, own.micro_batches)));
  if (!values.isfinite().all().item<bool>()) {
    leave_out(own.samples);
    own.samples = 0;
    values.zero_();
  }
  return values;
}

bool SwarmEngine::add_micro_batch(MicroBatches& batches, Portion& own, bool counts) {
  const Stopwatch computing;
  auto computed = accumulate(batches, /*is_first=*/own.micro_batches == 0);
  if (!computed) return false;
  own.loss = std::move(computed->first);
  ++own.micro_batches;
  own.samples += computed->second;
  if (!counts) return true;
  swarm().report({.samples = computed->second,
                  .loss = own.loss->item<double>(),
                  .seconds = computing.seconds()},
                 setup().stops);
  return true;
}

parallel::SwarmMember::Outcome SwarmEngine::average(Portion& own) {
  auto values = contribution(own);
  swarm().contribute(values, static_cast<double>(own.samples));
  const auto outcome = swarm().finish(values, setup().stops);
  if (outcome == Outcome::averaged) gradients_.spread(values);
  return outcome;
}

StepResult SwarmEngine::step(MicroBatches& batches) {
  Portion own;
  for (;;) {
    auto outcome = Outcome::no_step;
    const bool is_paused = swarm().is_paused();
    if (swarm().is_behind()) {
      outcome = Outcome::behind;
    } else if ((own.micro_batches > 0 || is_paused) && swarm().is_due()) {
      outcome = average(own);
      setup().times.end(observe::Phase::exposed_communication);
      if (own.samples == 0) own.micro_batches = 0;
    }
    if (outcome == Outcome::averaged) break;
    if (outcome == Outcome::no_step && is_paused) {
      // A micro-batch from before may be the last one of the step.
      if (swarm().rest(setup().stops)) continue;
      outcome = Outcome::stopped;
    }
    finish(batches, own);
    if (outcome != Outcome::no_step || !add_micro_batch(batches, own)) return {};
  }
  keep_buffers();
  optimizer_step(batches.step());
  end_step(batches, own);
  return {.is_complete = true};
}

}  // namespace troika::train
