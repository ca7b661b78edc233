#include "troika/plan/search/step_order.h"

#include <algorithm>

#include "troika/layout/schedules/orders.h"
#include "troika/layout/schedules/pairs.h"
#include "troika/plan/search/step_layout.h"

namespace troika::plan {

bool is_even(const std::vector<StepStage>& stages) {
  return std::ranges::all_of(
      stages, [&](const StepStage& stage) { return stage.replicas == stages.front().replicas; });
}

layout::Schedule step_order(const StepSettings& settings, const std::vector<StepStage>& stages,
                            int micro_batches) {
  layout::PipelineShape shape{
      .ranks = static_cast<int>(stages.size()), .micro_batches = micro_batches, .chunks = 1};
  if (!is_even(stages)) {
    std::vector<int> warm_up;
    int left = settings.groups();
    for (const auto& stage : stages) {
      warm_up.push_back(std::min(left, micro_batches) - 1);
      left -= stage.replicas;
    }
    return layout::one_forward_one_backward_order(shape, warm_up);
  }
  shape.micro_batches /= stages.front().replicas;
  if (settings.tensor_overlap) {
    const auto& row =
        layout::schedule_row(schedule_name(settings.family, layout::StageWeights::synchronous));
    return layout::join_pairs(layout::order_in_pairs(row, shape));
  }
  if (settings.family == StepFamily::zero_bubble) return layout::zb_h1_order(shape);
  if (settings.family == StepFamily::gpipe) return layout::gpipe_order(shape);
  return layout::one_forward_one_backward_order(shape);
}

}  // namespace troika::plan
