#include "troika/train/engine/swarm_engine.h"

#include <algorithm>
#include <utility>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/observe/step_times.h"
#include "troika/train/options/options.h"
#include "troika/train/task/task.h"

namespace troika::train {

SwarmEngine::SwarmEngine(const EngineSetup& setup)
    : SingleStageEngine(setup),
      swarm_(*setup.swarm),
      gradients_(dynamic_cast<parallel::SwarmExchange&>(exchange())) {
  keep_buffers();
}

void SwarmEngine::keep_buffers() {
  for (const auto& [name, buffer] : nn::named_buffers(setup().task.module())) {
    buffers_[name] = buffer.detach().clone();
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

parallel::SwarmMember::Outcome SwarmEngine::average(int64_t& samples, int64_t micro_batches) {
  if (micro_batches == 0) {
    // A pause: there are those of the last step.
    for (const auto& parameter : gradients_.parameters()) parameter.tensor.mutable_grad().reset();
  }
  auto values = gradients_.gather(1.0 / static_cast<double>(std::max<int64_t>(1, micro_batches)));
  if (!values.isfinite().all().item<bool>()) {
    if (setup().options.trainer.terminate_on_nan) {
      throw Error("train", ErrorKind::failure,
                  {.what = "the gradients of this peer are not finite",
                   .got = "inf or nan",
                   .expected = "numbers",
                   .hint = "the other peers go on without it; trainer.terminate_on_nan=false "
                           "leaves its samples out and trains on"});
    }
    log::warn("[swarm] gradients that are not finite: {} samples are left out", samples);
    samples = 0;
    values.zero_();
  }
  const auto outcome = swarm_.average(values, static_cast<double>(samples), setup().stops);
  if (outcome == Outcome::averaged) gradients_.spread(values);
  return outcome;
}

StepResult SwarmEngine::step(MicroBatches& batches) {
  int64_t samples = 0, micro_batches = 0;
  std::optional<at::Tensor> loss;  // of the last micro-batch, until it is done
  const auto finish = [&] {
    if (loss) batches.done(*std::exchange(loss, std::nullopt));
  };
  for (;;) {
    auto outcome = Outcome::no_step;
    const bool is_paused = swarm_.is_paused();
    if (swarm_.is_behind()) {
      outcome = Outcome::behind;
    } else if ((micro_batches > 0 || is_paused) && swarm_.is_due()) {
      outcome = average(samples, micro_batches);
      setup().times.end(observe::Phase::exposed_communication);
      if (samples == 0) micro_batches = 0;
    }
    if (outcome == Outcome::averaged) break;
    if (outcome == Outcome::no_step && is_paused) {
      // A micro-batch from before may be the last one of the step.
      if (swarm_.rest(setup().stops)) continue;
      outcome = Outcome::stopped;
    }
    finish();
    if (outcome != Outcome::no_step) return {};
    const Stopwatch computing;
    auto computed = accumulate(batches, /*is_first=*/micro_batches == 0);
    if (!computed) return {};
    loss = std::move(computed->first);
    ++micro_batches;
    samples += computed->second;
    swarm_.report(
        {.samples = computed->second, .loss = loss->item<double>(), .seconds = computing.seconds()},
        setup().stops);
  }
  keep_buffers();
  optimizer_step(batches.step());
  if (loss) {
    batches.end_with_next();
    finish();
  } else {
    batches.end_without();
  }
  return {.is_complete = true};
}

}  // namespace troika::train
