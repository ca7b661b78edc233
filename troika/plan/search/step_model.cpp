#include "troika/plan/search/step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/device_rates.h"
#include "troika/layout/tensor_shard.h"
#include "troika/plan/errors/refuse.h"
#include "troika/plan/lateness.h"

namespace troika::plan {

using layout::Link;
using layout::Profile;

namespace {

constexpr double kUnlimitedBytes = std::numeric_limits<double>::infinity();

void require_same_blocks(const std::vector<Profile>& profiles) {
  std::set<std::pair<std::string, double>> kinds;
  for (const auto& profile : profiles) {
    const auto& first = profiles.front();
    if (profile.blocks.size() != first.blocks.size() || profile.readers() != first.readers()) {
      refuse("profiles of a model",
             fmt::format("{} and {} blocks", first.blocks.size(), profile.blocks.size()),
             "the same blocks with the same edges");
    }
    for (size_t i = 0; i < first.blocks.size(); ++i) {
      if (profile.blocks[i].name == first.blocks[i].name) continue;
      refuse(fmt::format("block {} of the profiles of a model", i), profile.blocks[i].name,
             first.blocks[i].name);
    }
    if (!kinds.emplace(profile.precision, profile.micro_batch).second) {
      refuse("profiles of a model",
             fmt::format("two of precision {} and micro-batches of {}", profile.precision,
                         profile.micro_batch),
             "one of each precision and size");
    }
  }
}

double ring_seconds(const Link& link, double share, int ranks, double bytes) {
  if (ranks == 1) return 0;
  return 2.0 * (ranks - 1) * (link.latency + bytes / ranks * share * link.seconds_per_byte());
}

}  // namespace

std::string_view name(StepFamily family) {
  switch (family) {
    case StepFamily::one_stage:
      return "one stage";
    case StepFamily::pipeline:
      return "1f1b";
    case StepFamily::pipeline_rows:
      return "1f1b, rows";
    case StepFamily::zero_bubble:
      return "zb-h1";
    case StepFamily::no_flushes:
      return "no flushes";
  }
  return {};
}

StepModel::StepModel(StepProblem problem) : problem_(std::move(problem)) {
  TROIKA_CHECK(!problem_.profiles.empty() && problem_.cluster.ranks() > 0,
               "a profile and a device");
  require_same_blocks(problem_.profiles);
  if (!(problem_.compression_ratio > 0)) {
    refuse("compression ratio", fmt::format("{}", problem_.compression_ratio), "a number > 0");
  }
  TROIKA_CHECK(problem_.offload.empty() || problem_.offload.size() == problem_.profiles.size(),
               "times of offload for every profile");
  order_ = problem_.profiles.front().topological_order();
  for (const auto& profile : problem_.profiles) {
    const double count = problem_.global_batch / profile.micro_batch;
    constexpr double kMost = 1e6;
    const bool divides = count >= 1 && count <= kMost && count == std::floor(count);
    micro_batches_.push_back(divides ? static_cast<int>(count) : 0);
  }
  if (std::ranges::max(micro_batches_) == 0) {
    refuse("samples of an optimizer step", fmt::format("{}", problem_.global_batch),
           fmt::format("a multiple of a profile's micro-batch, as {}, at most 10^6 times",
                       problem_.profiles.front().micro_batch));
  }
  for (size_t row = 0; row < problem_.cluster.devices.size(); ++row) {
    rows_.insert(rows_.end(), static_cast<size_t>(problem_.cluster.devices[row].count), row);
  }
  find_axes();
  for (size_t i = 0; i < problem_.profiles.size(); ++i) {
    const auto slowness =
        layout::device_slowness(problem_.cluster, problem_.profiles[i].device_flops);
    for (const auto& axis : axes_) {
      auto own = layout::tensor_shard(problem_.profiles[i], axis.ranks, axis.sequence);
      auto sums = sums_of(own);
      sums.slowness = slowness;
      sums.least_slowness = std::ranges::min(slowness);
      sums.fastest_axis = fastest_axis({.profile = i, .tensor = axis});
      shards_.push_back({std::move(own), std::move(sums)});
    }
  }
}

StepModel::Sums StepModel::sums_of(const Profile& profile) const {
  const size_t count = order_.size();
  std::vector<size_t> place(count);
  for (size_t i = 0; i < count; ++i) place[order_[i]] = i;
  const auto readers = profile.readers();
  std::vector<double> inputs(count, 0);
  Sums sums;
  sums.crossing.assign(count + 1, 0);
  for (size_t from = 0; from < count; ++from) {
    size_t last = place[from];
    for (const size_t to : readers[from]) {
      inputs[place[to]] += profile.blocks[from].output_bytes;
      last = std::max(last, place[to]);
    }
    for (size_t at = place[from] + 1; at <= last; ++at) {
      sums.crossing[at] += profile.blocks[from].output_bytes;
    }
  }
  const auto add = [&](std::vector<double>& sum, auto&& value) {
    sum.push_back(0);
    for (size_t i = 0; i < count; ++i) sum.push_back(sum.back() + value(i));
  };
  const auto block = [&](size_t i) -> const layout::ProfiledBlock& {
    return profile.blocks[order_[i]];
  };
  add(sums.forward, [&](size_t i) { return block(i).forward; });
  add(sums.input, [&](size_t i) { return block(i).backward_input; });
  add(sums.weight, [&](size_t i) { return block(i).backward_weight; });
  add(sums.deviation, [&](size_t i) { return block(i).spread * block(i).seconds(); });
  add(sums.variance, [&](size_t i) { return std::pow(block(i).spread * block(i).seconds(), 2); });
  add(sums.saved, [&](size_t i) { return block(i).saved_bytes; });
  add(sums.inputs, [&](size_t i) { return inputs[i]; });
  add(sums.parameters, [&](size_t i) { return block(i).parameter_bytes; });
  const auto cut = [&](size_t i) { return block(i).tensor.value_or(layout::TensorCut{}); };
  add(sums.forward_sums, [&](size_t i) { return cut(i).forward_sums; });
  add(sums.forward_summed, [&](size_t i) { return cut(i).forward_sums * cut(i).sum_bytes; });
  add(sums.backward_sums, [&](size_t i) { return cut(i).backward_sums; });
  add(sums.backward_summed, [&](size_t i) { return cut(i).backward_sums * cut(i).sum_bytes; });
  const auto maximum = [&](auto&& value) {
    std::vector<double> values;
    for (size_t i = 0; i < count; ++i) values.push_back(value(block(i)));
    return RangeMaximum(std::move(values));
  };
  std::vector<double> saved, recomputed, alone;
  for (size_t i = 0; i < count; ++i) {
    alone.push_back((i > 0 ? block(i - 1).saved_bytes : 0) + block(i).saved_bytes +
                    block(i).workspace_bytes);
    saved.push_back(sums.saved[i + 1] + block(i).workspace_bytes);
    recomputed.push_back(sums.inputs[i + 1] + block(i).saved_bytes + block(i).workspace_bytes);
  }
  sums.most_saved = RangeMaximum(std::move(saved));
  sums.most_recomputed = RangeMaximum(std::move(recomputed));
  sums.most_alone = RangeMaximum(std::move(alone));
  sums.largest_parameters = maximum([](const auto& one) { return one.parameter_bytes; });
  return sums;
}

double StepModel::average_seconds(const Place& place, int replicas, double bytes) const {
  if (bytes <= 0 || replicas == 1) return 0;
  if (place.hosts == 1) return ring_seconds(place.inside, 1, replicas, bytes);
  const double flat = ring_seconds(place.between, place.share, replicas, bytes);
  const double levels = ring_seconds(place.inside, 1, place.fullest, bytes) +
                        ring_seconds(place.between, place.share, place.hosts, bytes);
  return std::min(flat, levels);
}

StepModel::Cost StepModel::stage(const StepSettings& settings, size_t begin, size_t end, int used,
                                 int replicas) const {
  const auto& [profile, sums] = shard_of(settings);
  const auto& place = place_of(settings, used, replicas);
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const int count = micro_batches_[settings.profile];
  const int own = (count + replicas - 1) / replicas;
  const double zero = replicas;

  const double bytes = part(sums.parameters);
  const double average = average_seconds(place, replicas, bytes);

  const double once = part(sums.forward) + part(sums.input) + part(sums.weight);
  // ZeRO stage 3 waits for the latest replica in each block.
  const double late = (settings.zero_stage == 3 ? part(sums.deviation)
                                                : std::sqrt(std::max(0.0, part(sums.variance)))) *
                          place.lateness +
                      part(sums.deviation) * expected_maximum(settings.tensor.ranks);
  const double again = settings.recompute ? part(sums.forward) : 0;
  // ZeRO stage 3 gathers parameters for both passes, and then scatters gradients.
  const double gathered = replicas > 1 ? profile.gather_seconds(bytes) : 0;
  const double gathers = settings.zero_stage == 3 ? average + 2 * gathered : 0;
  const auto offload = offload_seconds(settings);
  const double on_axis = axis_seconds(settings, place.axis, begin, end);
  const double pass = (once + again + late) * place.slowness + gathers + offload.pass + on_axis;
  Cost cost;
  cost.latency = pass;
  if (settings.family == StepFamily::zero_bubble) {
    // In zb-h1, the weight parts of backward passes fill the waits.
    const double waits =
        (part(sums.forward) + again + part(sums.input) - part(sums.weight)) * place.slowness +
        on_axis;
    cost.latency = std::clamp(waits, 0.0, pass);
  }
  const bool flushes = settings.family != StepFamily::no_flushes;
  if (!flushes) cost.latency = 0;
  cost.steady = own * pass - cost.latency;
  cost.steady += (profile.in_step.first_micro_batch_factor - 1) * (once + again) * place.slowness;
  // The gradients of the stage's first block are averaged after the whole backward pass.
  const auto& first = profile.blocks[order_[begin]];
  const bool is_zero = settings.zero_stage > 0;
  const double reduced = is_zero ? average / 2 : average;
  const double hidden = (part(sums.input) + part(sums.weight) + again - first.backward() -
                         (settings.recompute ? first.forward : 0)) *
                        place.slowness;
  const double last = bytes > 0 ? reduced * first.parameter_bytes / bytes : 0;
  cost.exposed = std::max(last, reduced - profile.in_step.overlap * std::min(hidden, reduced));
  if (is_zero && settings.zero_stage < 3) cost.exposed += average / 2 + gathered;
  if (profile.optimizer_bytes_per_second > 0) {
    cost.exposed +=
        bytes / (is_zero ? zero : 1) / profile.optimizer_bytes_per_second * place.slowness;
  }
  cost.exposed += offload.optimizer / (is_zero ? zero : 1);

  int kept = (settings.groups() - used + replicas - 1) / replicas;
  if (settings.family == StepFamily::zero_bubble) kept = settings.groups() / replicas;
  if (flushes) kept = std::min(kept, own);
  cost.memory_bytes = stage_bytes(settings, begin, end, replicas, kept) +
                      older_versions(settings, used, replicas) * bytes;
  double most = cost.memory_bytes;
  if (settings.family == StepFamily::one_stage && problem_.one_stage_bytes) {
    if (const auto known = problem_.one_stage_bytes(settings)) {
      cost.memory_bytes = known->step;
      most = std::max(known->step, known->most);
    }
  }
  cost.lacking_bytes = place.capacity == kUnlimitedBytes ? 0 : most - place.capacity;
  return cost;
}

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
                              int kept) const {
  const auto& sums = shard_of(settings).sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const auto shards = [&](int stage) { return settings.zero_stage >= stage ? replicas : 1; };
  const double parameters = part(sums.parameters);
  const double states = settings.offloads_optimizer
                            ? 0
                            : parameters * problem_.profiles[settings.profile].optimizer_factor;
  double bytes = states / shards(1) + parameters / shards(2) + parameters / shards(3) +
                 sums.crossing[begin] + sums.crossing[end];
  if (settings.zero_stage == 3 && replicas > 1) {
    bytes += 2 * sums.largest_parameters.of(begin, end);
  }
  if (settings.offloads_activations) return bytes + sums.most_alone.of(begin, end);
  // The latest micro-batch needs most in the backward pass of one of its blocks.
  const double latest = settings.recompute
                            ? sums.most_recomputed.of(begin, end) - sums.inputs[begin]
                            : sums.most_saved.of(begin, end) - sums.saved[begin];
  return bytes + (kept - 1) * part(settings.recompute ? sums.inputs : sums.saved) + latest;
}

StepModel::Cost StepModel::boundary(const StepSettings& settings, size_t end, int used,
                                    int replicas, int next_replicas) const {
  const double bytes = shard_of(settings).sums.crossing[end] / problem_.compression_ratio;
  const auto& crossing = crossing_of(settings, used, replicas, next_replicas);
  double slowest = 0, port = 0;
  for (const auto level : {layout::Level::group, layout::Level::host, layout::Level::network}) {
    if (!crossing.has_level[static_cast<size_t>(level)]) continue;
    const auto wire = link(settings.profile, level);
    const double share = level == layout::Level::network ? crossing.port_share
                                                         : 1.0 / std::min(replicas, next_replicas);
    slowest = std::max(slowest, wire.seconds(bytes));
    port = std::max(port, share * bytes * wire.seconds_per_byte());
  }
  const int count = micro_batches_[settings.profile];
  if (settings.family == StepFamily::no_flushes) return {.latency = 0, .steady = count * port};
  return {.latency = 2 * slowest, .steady = (count - 1) * port};
}

StepPlan StepModel::price(const StepSettings& settings,
                          const std::vector<StepStage>& stages) const {
  StepPlan plan{.settings = settings, .stages = stages, .lacking_bytes = -kUnlimitedBytes};
  double latency = 0, steady = 0, exposed = 0;
  size_t begin = 0;
  int used = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto& [end, replicas] = stages[i];
    const auto own = stage(settings, begin, end, used, replicas);
    latency += own.latency;
    steady = std::max(steady, own.steady);
    exposed = std::max(exposed, own.exposed);
    plan.memory_bytes.push_back(own.memory_bytes);
    plan.lacking_bytes = std::max(plan.lacking_bytes, own.lacking_bytes);
    if (i + 1 < stages.size()) {
      const auto wire = boundary(settings, end, used, replicas, stages[i + 1].replicas);
      latency += wire.latency;
      steady = std::max(steady, wire.steady);
    }
    begin = end;
    used += replicas;
  }
  plan.seconds = latency + steady + exposed;
  return plan;
}

// The steady part of a stage is at least its pass times (micro-batches / replicas - 1). The maximum
// over stages is at least their mean weighted by replicas, and this mean is at least the value for
// one stage on all devices.
StepModel::Least StepModel::least(const StepSettings& settings, size_t begin, int devices) const {
  const auto& sums = shard_of(settings).sums;
  const double on_axis = axis_seconds(settings, sums.fastest_axis, begin, blocks());
  const auto rest = [&](const std::vector<double>& sum) { return sum.back() - sum[begin]; };
  const double again = settings.recompute ? rest(sums.forward) : 0;
  const double once = rest(sums.forward) + again + rest(sums.input) + rest(sums.weight);
  const bool flushes = settings.family != StepFamily::no_flushes;
  const double waits = !flushes ? 0
                       : settings.family == StepFamily::zero_bubble
                           ? std::max(0.0, once - 2 * rest(sums.weight))
                           : once;
  const double rounds =
      static_cast<double>(micro_batches_[settings.profile]) / devices - (flushes ? 1 : 0);
  // In zb-h1, the weight parts of backward passes can also fill the waits for sums.
  const bool waits_for_sums = flushes && settings.family != StepFamily::zero_bubble;
  return {.latency = waits * sums.least_slowness + (waits_for_sums ? on_axis : 0),
          .steady = std::max(0.0, rounds) * (once * sums.least_slowness + on_axis)};
}

double StepModel::lower_bound() const {
  double least = kUnlimitedBytes;
  for (size_t i = 0; i < problem_.profiles.size(); ++i) {
    if (micro_batches_[i] == 0) continue;
    for (const auto& axis : axes_) {
      const StepSettings settings{.profile = i, .tensor = axis};
      const auto& sums = shard_of(settings).sums;
      const double once = sums.forward.back() + sums.input.back() + sums.weight.back();
      const double on_axis = axis_seconds(settings, sums.fastest_axis, 0, blocks());
      const double groups = problem_.cluster.ranks() / axis.ranks;
      least = std::min(least, (once * sums.least_slowness + on_axis) * micro_batches_[i] / groups);
    }
  }
  return least;
}

}  // namespace troika::plan
