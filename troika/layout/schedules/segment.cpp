#include "troika/layout/schedules/segment.h"

#include <utility>

#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/orders.h"

namespace troika::layout {

Schedule asynchronous_order(const AsynchronousPipeline& pipeline, int micro_batches) {
  std::vector<int> warm_up;
  for (int s = 0; s < pipeline.stages; ++s) {
    warm_up.push_back(static_cast<int>(pipeline.warm_up(s)));
  }
  return one_forward_one_backward_order(
      {.ranks = pipeline.stages, .micro_batches = micro_batches, .chunks = 1}, warm_up);
}

Schedule asynchronous_segment(const AsynchronousPipeline& pipeline, int steps) {
  const auto micro_batches = static_cast<int>(pipeline.micro_batches);
  auto segment = complete(asynchronous_order(pipeline, micro_batches * steps));
  for (auto& actions : segment.ranks) {
    std::vector<Action> own;
    bool is_due = false;
    const auto step = [&](int stage) {
      if (std::exchange(is_due, false)) own.push_back({ActionKind::step, stage});
    };
    for (const auto& action : std::exchange(actions, {})) {
      if (action.kind == ActionKind::reduce || action.kind == ActionKind::step) continue;
      if (action.kind == ActionKind::backward) step(action.stage);
      own.push_back(action);
      const auto last = action.stage == 0 ? ActionKind::backward : ActionKind::send_gradient;
      if (action.kind != last || (action.micro_batch + 1) % micro_batches != 0) continue;
      own.push_back({ActionKind::reduce, action.stage});
      is_due = true;
      if (!asynchronous_stage(pipeline, action.stage).steps_after_forward()) step(action.stage);
    }
    if (!own.empty()) step(own.back().stage);
    actions = std::move(own);
  }
  return segment;
}

}  // namespace troika::layout
