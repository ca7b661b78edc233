// The memory of stages, and what offload adds to their times.
#include <algorithm>

#include "troika/layout/plan.h"
#include "troika/layout/summation.h"
#include "troika/plan/search/step_model.h"
#include "troika/plan/unsharded_bytes.h"

namespace troika::plan {

// As layout::AsynchronousStage::most_versions(); vertical sync has the first stage's delay, which
// is at most that of a stage without replicas.
int StepModel::older_versions(const StepSettings& settings, int used, int replicas) const {
  if (settings.family != StepFamily::no_flushes) return 0;
  if (problem_.weights == layout::StageWeights::unstashed) return 0;
  if (problem_.weights == layout::StageWeights::double_buffered) return 1;
  const int count = micro_batches_[settings.profile];
  const int after = settings.groups() - used - 1;
  const bool is_vertical = problem_.weights == layout::StageWeights::vertical_sync;
  const int delay = is_vertical ? settings.groups() - 1 : after / replicas * replicas;
  return (delay + count - 1) / count;
}

OffloadSeconds StepModel::offload_seconds(const StepSettings& settings) const {
  OffloadSeconds seconds;
  if (problem_.offload.empty()) return seconds;
  const auto& known = problem_.offload[settings.profile];
  const auto& sums = shard_of(settings).sums;
  if (settings.offloads_optimizer) seconds.optimizer = known.optimizer;
  if (!settings.offloads_activations) return seconds;
  // Recomputed blocks only save their inputs.
  const double share = settings.recompute && sums.saved.back() > 0
                           ? std::min(1.0, sums.inputs.back() / sums.saved.back())
                           : 1;
  seconds.pass = known.pass * share;
  return seconds;
}

double StepModel::stage_bytes(const StepSettings& settings, size_t begin, size_t end, int replicas,
                              double kept) const {
  const auto& sums = shard_of(settings).sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const auto shards = [&](int stage) { return settings.zero_stage >= stage ? replicas : 1; };
  const double parameters = part(sums.parameters);
  const double states = settings.offloads_optimizer
                            ? 0
                            : parameters * problem_.profiles[settings.profile].optimizer_factor;
  double bytes = states / shards(1) + parameters / shards(2) + parameters / shards(3) +
                 sums.crossing[begin] + sums.crossing[end];
  if (settings.sums && replicas > 1) {
    const auto spares = static_cast<int>(problem_.cluster.spares.size());
    bytes += parameters * layout::split_sums(replicas, spares).workers.front();
  }
  if (replicas > 1) {
    std::vector<double> of_blocks;
    for (size_t i = begin; i < end && settings.zero_stage >= 2; ++i) {
      of_blocks.push_back(sums.parameters[i + 1] - sums.parameters[i]);
    }
    bytes += unsharded_bytes(
        {.parameter_bytes = of_blocks,
         .zero_stage = settings.zero_stage,
         .accumulates = micro_batches_[settings.profile] > replicas,
         .bucket_bytes = static_cast<double>(layout::GradientExchange().bucket_bytes)});
  }
  if (settings.offloads_activations) return bytes + sums.most_alone.of(begin, end);
  // The latest micro-batch needs most in the backward pass of one of its blocks.
  const double latest = settings.recompute
                            ? sums.most_recomputed.of(begin, end) - sums.inputs[begin]
                            : sums.most_saved.of(begin, end) - sums.saved[begin];
  return bytes + (kept - 1) * part(settings.recompute ? sums.inputs : sums.saved) + latest;
}

}  // namespace troika::plan
