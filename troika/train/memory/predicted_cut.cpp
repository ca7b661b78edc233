#include "troika/train/memory/predicted_cut.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "troika/base/memory.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/layout/stage_cut.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/pipeline/pipeline_schedule.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/engine/placement.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

using layout::Action;
using layout::ActionKind;

// The most micro-batches of each stage between their forward and backward passes.
std::vector<int> most_kept(const layout::Schedule& passes) {
  std::vector<int> now, most;
  for (const auto& actions : passes.ranks) {
    for (const auto& [kind, stage, micro_batch, peer, joined] : actions) {
      const auto s = static_cast<size_t>(stage);
      if (now.size() <= s) {
        now.resize(s + 1);
        most.resize(s + 1);
      }
      if (kind == ActionKind::forward) most[s] = std::max(most[s], ++now[s]);
      if (kind == ActionKind::backward || kind == ActionKind::backward_weight) --now[s];
    }
  }
  return most;
}

std::vector<layout::BlockCost> estimates(const TrainOptions& options, const Task& task,
                                         const data::Dataset& dataset, int64_t samples) {
  const auto precision = nn::parse_precision(options.trainer.precision);
  const auto batch = Placement{.precision = precision}.place(
      dataset.load(std::vector<int64_t>(static_cast<size_t>(samples), 0), {}));
  const compat::FakeTensorGuard no_memory;
  const nn::Autocast autocast(precision, at::kCPU);
  const nn::KeyedDraws draws(nn::some_samples(samples));
  return nn::estimate_blocks(task.blocks(), task.block_inputs(batch), task.output_loss(batch));
}

}  // namespace

double optimizer_bytes_each(const optim::OptimizerOptions& options,
                            const nn::NumericPrecision& precision) {
  constexpr int64_t kSome = 1 << 16;
  const auto type = precision.needs_masters() ? at::kFloat : precision.parameters;
  const compat::FakeTensorGuard no_memory;
  const auto parameter = at::empty({kSome}, type);
  const int64_t before = memory::live();
  const auto optimizer =
      optim::make_optimizer(std::vector<optim::Parameter>{{"some", parameter}}, options);
  const double each = static_cast<double>(memory::live() - before) / kSome;
  return each + (precision.needs_masters() ? 2 * sizeof(float) : 0);
}

std::string predicted_cut(const TrainOptions& options, const layout::Plan& plan, const Task& task,
                          const data::Dataset& dataset, int64_t batch) {
  const auto& by = options.pipeline.cut_by;
  if (!is_pipeline(plan) || !plan.stages.cut.empty() || !task.has_blocks()) return {};
  if (by != "flops" && by != "bytes") return {};
  const auto& model = task.blocks();
  const auto passes =
      parallel::passes_for(pipeline_options(plan), plan.mesh, model.blocks().size());
  const auto kept = most_kept(passes);
  const auto costs = estimates(options, task, dataset, batch);
  std::vector<double> sums{0}, saved{0};
  compat::count_tensor_memory();
  const auto precision = nn::parse_precision(options.trainer.precision);
  const double states = optimizer_bytes_each(options.optimizer, precision);
  std::vector<std::string> names;
  for (size_t i = 0; i < costs.size(); ++i) {
    const auto& block = model.blocks()[i];
    names.push_back(block.name);
    double own = costs[i].forward + costs[i].backward;
    if (by == "bytes") {
      own = 0;
      for (const auto& [name, tensor] : model.owned_state(block)) {
        const auto elements = static_cast<double>(tensor.numel());
        own += tensor.requires_grad()
                   ? elements * (2 * static_cast<double>(tensor.element_size()) + states)
                   : static_cast<double>(tensor.nbytes());
      }
    }
    sums.push_back(sums.back() + own);
    saved.push_back(saved.back() + (by == "bytes" ? static_cast<double>(costs[i].saved_bytes) : 0));
  }
  return layout::cut_text(layout::balanced_cut(costs.size(), static_cast<int>(kept.size()),
                                               [&](int stage, size_t begin, size_t end) {
                                                 return sums[end] - sums[begin] +
                                                        kept[static_cast<size_t>(stage)] *
                                                            (saved[end] - saved[begin]);
                                               }),
                          names);
}

}  // namespace troika::train
