// The memory of stages, and what offload adds to their times.
#include <algorithm>
#include <cmath>
#include <utility>

#include "troika/layout/plan.h"
#include "troika/plan/memory/batch_memory.h"
#include "troika/plan/memory/block_exchange.h"
#include "troika/plan/memory/message_buffers.h"
#include "troika/plan/search/step_model.h"
#include "troika/plan/search/step_order.h"

namespace troika::plan {

namespace {

// `makes_first`: whether a whole backward pass counts the gradients that it makes.
double bytes_of_pass(const StageBytes& bytes, layout::ActionKind kind, bool makes_first) {
  switch (kind) {
    case layout::ActionKind::backward_input:
      return bytes.most_in_input_part;
    case layout::ActionKind::backward_weight:
      return bytes.most_in_weight_part;
    case layout::ActionKind::backward:
      return makes_first ? bytes.most_at_first : bytes.most;
    default:
      return bytes.most;
  }
}

}  // namespace

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

const std::vector<KeptAtPass>& StepModel::kept_at_passes(const StepSettings& settings,
                                                         bool is_split, int used,
                                                         int replicas) const {
  const int stages = settings.groups() / replicas, own = own_micro_batches(settings, replicas);
  auto& known = kept_at_passes_[{static_cast<int>(settings.family), is_split ? 1 : 0, stages, own}];
  if (known.empty()) {
    const std::vector<StepStage> alike(static_cast<size_t>(stages));
    for (const auto& actions : step_order(settings, alike, own).ranks) {
      known.push_back(plan::kept_at_passes(actions, is_split));
    }
  }
  return known[static_cast<size_t>(used / replicas)];
}

StepModel::KeptPasses StepModel::kept_passes(const StepSettings& settings, size_t begin, size_t end,
                                             int used, int replicas) const {
  const int own = own_micro_batches(settings, replicas);
  const int stages_left = (settings.groups() - used + replicas - 1) / replicas;
  KeptPasses kept{.whole = static_cast<double>(stages_left)};
  if (settings.family == StepFamily::gpipe) kept.whole = own;
  if (settings.family == StepFamily::one_stage) kept.whole = settings.passes_together();
  if (settings.family != StepFamily::no_flushes) kept.whole = std::min<double>(kept.whole, own);
  kept.is_split =
      settings.family == StepFamily::zero_bubble && splits_backward(settings, begin, end);
  if (settings.tensor_overlap && settings.family != StepFamily::one_stage) {
    kept.at_passes = &kept_at_passes(settings, kept.is_split, used, replicas);
    double most = 0;
    for (const auto& pass : *kept.at_passes) {
      const bool is_weight_part = pass.kind == layout::ActionKind::backward_weight;
      kept.whole = std::max<double>(kept.whole, pass.whole + (is_weight_part ? 0 : 1));
      most = std::max<double>(most, pass.whole + pass.weight_parts + 1);
      kept.gradients = std::max<double>(kept.gradients, pass.weight_parts + 1);
    }
    kept.weight_part = most - kept.whole;
    return kept;
  }
  if (kept.is_split) {
    const double put_off = used / replicas, left = own - kept.whole;
    kept.weight_part = std::min(put_off, left);
    kept.gradients = 1 + kept.weight_part;
    kept.runs_weight_part = left >= put_off || kept.whole == 1 || own < stages_left;
  }
  return kept;
}

// Each stage has the buffers of one message of either kind, as all synchronous schedules, and
// stages without flushes that have equal numbers of replicas, have (layout::message_edges()). With
// forward passes that take turns, it has those of two inputs, and zb-h1 those of two gradients if
// there are more pairs than stages. The back end does not copy messages to other hosts.
double StepModel::message_bytes(const StepSettings& settings, size_t begin, size_t end,
                                int replicas, const KeptPasses& kept) const {
  const auto& [profile, sums, backward] = shard_of(settings);
  const int own = own_micro_batches(settings, replicas);
  double bytes = 0;
  if (begin > 0) {
    const ReceiveBuffers inputs(sums.crossing[begin], settings.passes_together());
    const bool stays = profile.blocks[order_[begin]].in_stage.weight_input_bytes > 0;
    bytes += inputs.held_with(kept.whole + (stays ? kept.weight_part : 0)) +
             ReceiveBuffers(sums.crossing[begin], 1).of_evaluations();
    if (problem_.cluster.hosts.size() > 1) bytes += sums.crossing[begin];
  }
  if (end < blocks()) {
    const bool stays = profile.blocks[order_[end - 1]].in_stage.weight_output_bytes > 0;
    const bool has_two = settings.family == StepFamily::zero_bubble && kept.at_passes &&
                         own > 2 * (settings.groups() / replicas);
    const ReceiveBuffers gradients(sums.crossing[end], has_two ? 2 : 1);
    bytes += gradients.held_with(stays ? kept.gradients : 1);
  }
  return bytes;
}

MemoryParts StepModel::stage_memory(const StepSettings& settings, size_t begin, size_t end,
                                    int used, int replicas) const {
  const auto& profile = problem_.profiles[settings.profile];
  const auto& sums = shard_of(settings).sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const double trained = part(sums.parameters) + (begin > 0 ? part(sums.borrowed) : 0);
  const int copies = settings.copies(replicas);
  const auto states =
      states_of(trained, part(sums.fixed),
                {.zero_stage = settings.zero_stage,
                 .ranks = static_cast<double>(copies),
                 .optimizer_factor = settings.offloads_optimizer ? 0 : profile.optimizer_factor});
  const auto kept = kept_passes(settings, begin, end, used, replicas);
  const bool is_pipeline = settings.has_stages();
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
                              .ahead = ahead,
                              .together = kept.whole},
                             profile.in_step.batches)};
  if (copies > 1 && settings.zero_stage >= 2) {
    std::vector<double> of_blocks;
    for (size_t i = begin; i < end; ++i) {
      of_blocks.push_back(sums.parameters[i + 1] - sums.parameters[i]);
    }
    const layout::GradientExchange exchange;
    parts.buckets = unsharded_bytes({.parameter_bytes = of_blocks,
                                     .zero_stage = settings.zero_stage,
                                     .ranks = copies,
                                     .accumulates = micro_batches > replicas,
                                     .bucket_bytes = exchange.bucket_bytes,
                                     .first_bucket_bytes = exchange.first_bucket_bytes});
  }
  if (settings.sums && replicas > 1) {
    parts.buckets += trained * most_summed(settings, replicas);
  }
  parts.buckets += message_bytes(settings, begin, end, replicas, kept);
  if (settings.offloads_activations) {
    parts.activations = sums.most_alone.of(begin, end);
    return parts;
  }
  auto bytes =
      (settings.recompute ? sums.recomputing : sums.keeping).of(begin, end, sums.crossing[end] > 0);
  if (settings.recompute) {
    // Messages count what a stage has taken. The output waits for its gradient.
    const double taken = std::min(part(sums.inputs), sums.crossing[begin]);
    bytes.kept += sums.crossing[end] - taken;
    bytes.most = std::max(bytes.most - taken, bytes.kept);
    bytes.most_at_first = std::max(bytes.most_at_first - taken, bytes.kept);
  }
  const double gradients = std::exchange(parts.gradients, 0);
  // A moment at which other micro-batches keep `whole` activations and those of `weight_parts`.
  const auto take = [&](double whole, double weight_parts, double own, double made) {
    if (whole < 0) return;
    const double others = whole * bytes.kept + weight_parts * bytes.weight_kept;
    if (others + own + made <= parts.activations + parts.workspace + parts.gradients) return;
    parts.activations = others;
    parts.workspace = own;
    parts.gradients = made;
  };
  if (kept.at_passes) {
    for (const auto& pass : *kept.at_passes) {
      const bool makes_first = copies == 1 && !pass.has_gradients;
      const bool has = !makes_first || pass.kind == layout::ActionKind::backward_input;
      take(pass.whole, pass.weight_parts, bytes_of_pass(bytes, pass.kind, makes_first),
           has ? gradients : 0);
    }
    take(0, 0, 0, gradients);
  } else if (kept.is_split) {
    take(kept.whole - 1, kept.weight_part, bytes.most_in_input_part, gradients);
    // The first weight part comes before the last forward pass, or after the next input part.
    const double whole = kept.whole - (kept.runs_weight_part ? 1 : 2);
    const double others = kept.weight_part + (kept.runs_weight_part ? 0 : 1);
    take(whole, others, std::max(bytes.most_in_input_part, bytes.most_in_weight_part), gradients);
  } else if (is_pipeline && settings.family != StepFamily::no_flushes && copies == 1 &&
             kept.whole == micro_batches) {
    // Without replicas, each step makes gradients anew. The first backward pass finds all
    // activations, later ones find fewer, but all gradients.
    take(kept.whole - 1, 0, bytes.most_at_first, 0);
    take(kept.whole - 2, 0, bytes.most, gradients);
    take(0, 0, 0, gradients);
  } else {
    take(kept.whole - 1, 0, bytes.most, gradients);
  }
  return parts;
}

}  // namespace troika::plan
