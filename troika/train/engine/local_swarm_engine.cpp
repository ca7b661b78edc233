#include "troika/train/engine/local_swarm_engine.h"

#include <algorithm>
#include <utility>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/observe/step_times.h"

namespace troika::train {

LocalSwarmEngine::LocalSwarmEngine(const EngineSetup& setup)
    : SwarmSteps(setup), updates_(dynamic_cast<parallel::LocalUpdates&>(exchange())) {}

std::function<void()> LocalSwarmEngine::load(const checkpoint::CheckpointReader& saved,
                                             const checkpoint::NamedTensors& gradients) {
  return [this, take = SwarmSteps::load(saved, gradients)] {
    take();
    made_ = 0;
  };
}

bool LocalSwarmEngine::train(MicroBatches& batches, Portion& own) {
  const Stopwatch computing;
  finish(batches, own);
  auto computed = accumulate(batches, /*is_first=*/true);
  if (!computed) return false;
  own.loss = std::move(computed->first);
  ++made_;
  int64_t samples = computed->second;
  const bool is_finite =
      std::ranges::all_of(updates_.parameters(), [](const optim::Parameter& parameter) {
        const auto& gradient = parameter.tensor.grad();
        return !gradient.defined() || gradient.isfinite().all().item<bool>();
      });
  if (is_finite) {
    optimizer_step(batches.step());
    updates_.add_samples(samples);
  } else {
    leave_out(std::exchange(samples, 0));
  }
  swarm().report({.samples = samples,
                  .loss = is_finite ? own.loss->item<double>() : 0,
                  .seconds = computing.seconds()},
                 setup().stops);
  return true;
}

LocalSwarmEngine::Outcome LocalSwarmEngine::average(MicroBatches& batches, Portion& own) {
  updates_.send(batches.step());
  made_ = 0;
  const bool is_last = setup().steps > 0 && batches.step() + 1 >= setup().steps;
  const int64_t delay = is_last ? 0 : setup().plan.exchange.outer.delay;
  while (made_ < delay && !swarm().is_paused() && !swarm().is_behind() && !swarm().is_due() &&
         train(batches, own)) {
  }
  const auto outcome = updates_.finish(setup().stops);
  setup().times.end(observe::Phase::exposed_communication);
  return outcome;
}

StepResult LocalSwarmEngine::step(MicroBatches& batches) {
  Portion own;
  for (;;) {
    auto outcome = Outcome::no_step;
    const bool is_paused = swarm().is_paused();
    if (swarm().is_behind()) {
      outcome = Outcome::behind;
    } else if ((made_ > 0 || is_paused) && swarm().is_due()) {
      outcome = average(batches, own);
    }
    if (outcome == Outcome::averaged) break;
    if (outcome == Outcome::no_step && is_paused) {
      // A micro-batch from before may be the last one of the round.
      if (swarm().rest(setup().stops)) continue;
      outcome = Outcome::stopped;
    }
    if (outcome != Outcome::no_step) finish(batches, own);
    if (outcome != Outcome::no_step || !train(batches, own)) return {};
  }
  end_step(batches, own);
  return {.is_complete = true};
}

}  // namespace troika::train
