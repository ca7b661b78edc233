// The memory of the ranks of a tensor or context axis.
#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/comm/local/lone_rank.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/tensor/parameter_cuts.h"
#include "troika/train/engine/make_exchange.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

using layout::Axis;

MemoryPredictor::WholeBytes MemoryPredictor::whole_bytes() const {
  WholeBytes result{.made = 4.0 * static_cast<double>(nn::parameter_count(module_))};
  for (const auto& [name, tensor] : nn::named_state(module_)) {
    result.largest = std::max(result.largest, static_cast<double>(tensor.nbytes()));
  }
  return result;
}

std::string MemoryPredictor::why_not_cut(const layout::Plan& plan, int ranks) const {
  const int on_axis = plan.mesh.size(Axis::tensor);
  if (on_axis == 1 && plan.mesh.size(Axis::context) == 1) return {};
  try {
    require_runnable(plan, ranks);
    require_plan_fits(options_, plan, *task_);
    require_tokens_fit(plan, *task_, dataset_);
  } catch (const Error& problem) {
    if (problem.kind() != ErrorKind::usage) throw;
    return fmt::format("{} ranks: {}", ranks, problem.what());
  }
  if (on_axis == 1) return {};
  const auto modules = parallel::ruled_modules(*model_, task_->split_table());
  const bool shares = std::ranges::any_of(
      parallel::parameter_cuts(*model_, modules, /*rank=*/0, on_axis),
      [&](const auto& cut) { return cut.copies != 1 && cut.copies != on_axis; });
  return shares ? "heads that some ranks of a tensor axis share" : "";
}

CutLayers MemoryPredictor::cut_layers(const layout::Plan& plan) {
  const int ranks = plan.mesh.size(Axis::tensor);
  if (ranks == 1) return {};
  return {dynamic_cast<nn::Model&>(module_), task_->split_table(), ranks,
          plan.stages.sequence_parallel};
}

std::unique_ptr<parallel::ContextParallel> MemoryPredictor::cut_samples(const layout::Plan& plan) {
  const auto nobody = [](const comm::Call&) {};
  return train::cut_samples(plan, *task_,
                            comm::local::lone_rank(plan.mesh.size(Axis::context), nobody));
}

}  // namespace troika::train
