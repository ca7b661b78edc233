#include "troika/train/engine/delayed_swarm_engine.h"

#include <utility>

#include "troika/compat/torch.h"
#include "troika/observe/step_times.h"

namespace troika::train {

bool DelayedSwarmEngine::is_last(const MicroBatches& batches) const {
  return setup().steps > 0 && batches.step() + 1 >= setup().steps;
}

bool DelayedSwarmEngine::end_average(const Portion& own, bool is_last) {
  if (!gradients().is_averaging()) return true;
  const bool waits = own.micro_batches > 0 && (is_last || swarm().has_share(own.samples));
  if (!waits && !swarm().is_over()) return true;
  const auto outcome = gradients().end_average(setup().stops);
  setup().times.end(observe::Phase::exposed_communication);
  return outcome != Outcome::stopped;
}

bool DelayedSwarmEngine::compute(MicroBatches& batches, Portion& own) {
  const bool is_last = this->is_last(batches);
  for (;;) {
    const bool is_paused = swarm().is_paused();
    if (swarm().is_behind() || !end_average(own, is_last)) return false;
    if (swarm().is_behind()) return false;
    const bool may_end = (own.micro_batches > 0 || is_paused) && !gradients().is_averaging();
    if (may_end && ((is_last && gradients().has_delayed()) || swarm().is_due())) return true;
    if (is_paused) {
      if (!swarm().rest(setup().stops)) return false;
      continue;
    }
    finish(batches, own);
    const bool counts = !is_last || !gradients().has_average();
    if (!add_micro_batch(batches, own, counts)) return false;
  }
}

StepResult DelayedSwarmEngine::step(MicroBatches& batches) {
  gradients().go_on_with_buffers();
  Portion own;
  if (!compute(batches, own)) {
    finish(batches, own);
    return {};
  }
  const bool updates = gradients().has_delayed();
  if (updates) {
    const auto next = gradients().take_gradients();
    const auto changes = gradients().changes_of_buffers();
    gradients().spread_delayed();
    keep_buffers();
    optimizer_step(batches.step());
    gradients().put_gradients(next);
    gradients().add_to_buffers(changes);
  }
  if (!updates || !is_last(batches)) {
    const auto values = contribution(own);
    gradients().begin_average(values, static_cast<double>(own.samples));
  }
  show_kept_buffers();
  updates ? end_step(batches, own) : finish(batches, own);
  return {.is_complete = updates};
}

}  // namespace troika::train
