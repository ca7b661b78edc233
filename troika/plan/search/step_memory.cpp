// The memory of stages, and what offload adds to their times.
#include <algorithm>
#include <cmath>

#include "troika/layout/plan.h"
#include "troika/layout/summation.h"
#include "troika/plan/memory/batch_memory.h"
#include "troika/plan/memory/block_exchange.h"
#include "troika/plan/memory/message_buffers.h"
#include "troika/plan/search/step_model.h"

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

StepModel::KeptPasses StepModel::kept_passes(const StepSettings& settings, size_t begin, size_t end,
                                             int used, int replicas) const {
  const int own = (micro_batches_[settings.profile] + replicas - 1) / replicas;
  KeptPasses kept{.whole =
                      static_cast<double>((settings.groups() - used + replicas - 1) / replicas)};
  if (settings.family == StepFamily::gpipe) kept.whole = own;
  if (settings.family != StepFamily::no_flushes) kept.whole = std::min<double>(kept.whole, own);
  if (settings.family == StepFamily::zero_bubble && splits_backward(settings, begin, end)) {
    kept.weight_part = std::min<double>(used / replicas, own - kept.whole);
  }
  return kept;
}

// Each stage has the buffers of one message of either kind, as all synchronous schedules, and
// stages without flushes that have equal numbers of replicas, have (layout::message_edges()). The
// back end does not copy messages to other hosts.
double StepModel::message_bytes(const StepSettings& settings, size_t begin, size_t end,
                                const KeptPasses& kept) const {
  const auto& sums = shard_of(settings).sums;
  double bytes = 0;
  if (begin > 0) {
    const ReceiveBuffers inputs(sums.crossing[begin], 1);
    bytes += inputs.held_with(kept.whole + kept.weight_part) + inputs.of_evaluations();
    if (problem_.cluster.hosts.size() > 1) bytes += sums.crossing[begin];
  }
  if (end < blocks()) bytes += ReceiveBuffers(sums.crossing[end], 1).held_with(1);
  return bytes;
}

MemoryParts StepModel::stage_memory(const StepSettings& settings, size_t begin, size_t end,
                                    int used, int replicas) const {
  const auto& profile = problem_.profiles[settings.profile];
  const auto& sums = shard_of(settings).sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const double trained = part(sums.parameters) + (begin > 0 ? part(sums.borrowed) : 0);
  const auto states =
      states_of(trained, part(sums.fixed),
                {.zero_stage = settings.zero_stage,
                 .ranks = static_cast<double>(replicas),
                 .optimizer_factor = settings.offloads_optimizer ? 0 : profile.optimizer_factor});
  const auto kept = kept_passes(settings, begin, end, used, replicas);
  const bool is_pipeline = settings.family != StepFamily::one_stage;
  // As layout::AsynchronousStage::steps_after_forward().
  const bool is_double = problem_.weights == layout::StageWeights::double_buffered;
  const double ahead =
      settings.family == StepFamily::no_flushes ? kept.whole - (is_double ? 0 : 1) : 0;
  const double micro_batches = micro_batches_[settings.profile];
  MemoryParts parts{
      .parameters = states.parameters + older_versions(settings, used, replicas) * trained,
      .gradients = states.gradients,
      .optimizer = states.optimizer,
      .batches = batch_bytes({.is_pipeline = is_pipeline,
                              .micro_batches = std::ceil(micro_batches / replicas),
                              .ahead = ahead},
                             profile.in_step.batches)};
  if (replicas > 1 && settings.zero_stage >= 2) {
    std::vector<double> of_blocks;
    for (size_t i = begin; i < end; ++i) {
      of_blocks.push_back(sums.parameters[i + 1] - sums.parameters[i]);
    }
    const layout::GradientExchange exchange;
    parts.buckets = unsharded_bytes({.parameter_bytes = of_blocks,
                                     .zero_stage = settings.zero_stage,
                                     .ranks = replicas,
                                     .accumulates = micro_batches > replicas,
                                     .bucket_bytes = exchange.bucket_bytes,
                                     .first_bucket_bytes = exchange.first_bucket_bytes});
  }
  if (settings.sums && replicas > 1) {
    const auto spares = static_cast<int>(problem_.cluster.spares.size());
    parts.buckets += trained * layout::split_sums(replicas, spares).workers.front();
  }
  parts.buckets += message_bytes(settings, begin, end, kept);
  if (settings.offloads_activations) {
    parts.activations = sums.most_alone.of(begin, end);
    return parts;
  }
  // Messages count what a stage has taken, and the gradients of what it gives. The latest
  // micro-batch needs most in the backward pass of one of its blocks.
  const double taken = std::min(part(sums.inputs), sums.crossing[begin]);
  const auto most = [&](const RangeMaximum& of_blocks) {
    const auto& last = shard_of(settings).profile.blocks[order_[end - 1]];
    double of_last = of_blocks.of(end - 1, end);
    if (end < blocks() && last.in_stage.sent_workspace_bytes > 0) {
      of_last += last.in_stage.sent_workspace_bytes - last.workspace_bytes;
    }
    return end - begin > 1 ? std::max(of_blocks.of(begin, end - 1), of_last) : of_last;
  };
  const double inner = part(sums.inputs) - taken;
  const double each =
      settings.recompute ? inner + sums.crossing[end] + part(sums.again) : part(sums.saved);
  double latest = settings.recompute
                      ? most(sums.most_recomputed) - sums.inputs[begin] - sums.again[begin] - taken
                      : most(sums.most_saved) - sums.saved[begin];
  if (kept.weight_part > 0) {
    // Measured: the weight part of several blocks takes about as much again as one of them keeps.
    const double others = end - begin > 1 ? part(sums.weight_saved) : 0;
    latest = std::max(latest, others + sums.most_weight.of(begin, end));
  }
  parts.activations = (kept.whole - 1) * each + kept.weight_part * part(sums.weight_saved);
  parts.workspace = latest;
  return parts;
}

}  // namespace troika::plan
