#include "troika/train/engine/measured_recompute.h"

#include <vector>

#include "troika/compat/torch.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/train/task/task.h"

namespace troika::train {

layout::RecomputePlan measured_plan(const Task& task, const data::Batch& placed, int64_t budget,
                                    const Placement& placement, const comm::Group& group) {
  std::vector<layout::BlockCost> costs = [&] {
    const nn::Autocast autocast(placement.precision, placement.device.type());
    return nn::measure_blocks(task.blocks(), task.block_inputs(placed), task.output_loss(placed));
  }();
  const auto agreed = at::empty({static_cast<int64_t>(costs.size()), 4}, at::kDouble);
  auto rows = agreed.accessor<double, 2>();
  for (size_t i = 0; i < costs.size(); ++i) {
    auto row = rows[static_cast<int64_t>(i)];
    row[0] = costs[i].forward;
    row[1] = costs[i].backward;
    row[2] = static_cast<double>(costs[i].output_bytes);
    row[3] = static_cast<double>(costs[i].saved_bytes);
  }
  group.all_reduce(agreed, comm::ReduceOp::max, {.label = "costs of blocks"});
  for (size_t i = 0; i < costs.size(); ++i) {
    auto row = rows[static_cast<int64_t>(i)];
    costs[i] = {.forward = row[0],
                .backward = row[1],
                .output_bytes = static_cast<int64_t>(row[2]),
                .saved_bytes = static_cast<int64_t>(row[3])};
  }
  return layout::plan_for_budget(costs, budget).plan;
}

}  // namespace troika::train
