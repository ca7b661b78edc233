#include "troika/plan/search/step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/context_shard.h"
#include "troika/layout/device_rates.h"
#include "troika/layout/tensor_shard.h"
#include "troika/plan/errors/refuse.h"
#include "troika/plan/simulation/stage_work.h"
#include "troika/plan/simulator.h"

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
    case StepFamily::gpipe:
      return "gpipe";
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
    links_.emplace_back(with_measured_links(problem_.cluster, problem_.profiles[i]));
    const auto slowness =
        layout::device_slowness(problem_.cluster, problem_.profiles[i].device_flops);
    for (const auto& axes : axes_) {
      auto own = layout::tensor_shard(layout::context_shard(problem_.profiles[i], axes.context),
                                      axes.tensor, axes.sequence);
      auto sums = sums_of(own);
      sums.slowness = slowness;
      sums.least_slowness = std::ranges::min(slowness);
      find_fastest(sums, own, {.profile = i, .axes = axes});
      SplitBackward backward(own, order_);
      shards_.push_back({std::move(own), std::move(sums), std::move(backward)});
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
  add(sums.fixed, [&](size_t i) { return block(i).in_stage.fixed_bytes; });
  add(sums.borrowed, [&](size_t i) { return block(i).in_stage.borrowed_bytes; });
  add(sums.inputs, [&](size_t i) { return inputs[i]; });
  add(sums.parameters, [&](size_t i) { return block(i).parameter_bytes; });
  const auto cut = [&](size_t i) {
    const auto& known = block(i).tensor;
    return known && known->sum_bytes > 0 ? *known : layout::TensorCut{};
  };
  add(sums.forward_sums, [&](size_t i) { return cut(i).forward_sums; });
  add(sums.forward_summed, [&](size_t i) { return cut(i).forward_sums * cut(i).sum_bytes; });
  add(sums.backward_sums, [&](size_t i) { return cut(i).backward_sums; });
  add(sums.backward_summed, [&](size_t i) { return cut(i).backward_sums * cut(i).sum_bytes; });
  add(sums.gathers, [&](size_t i) { return cut(i).backward_gathers; });
  add(sums.gathered, [&](size_t i) { return cut(i).backward_gathers * cut(i).sum_bytes; });
  std::vector<double> alone, most_parameters, least_parameters, longest, shortest;
  std::vector<PassedBlocks> keeping, recomputing;
  for (size_t i = 0; i < count; ++i) {
    alone.push_back((i > 0 ? block(i - 1).saved_bytes : 0) + block(i).saved_bytes +
                    block(i).workspace_bytes);
    keeping.push_back(keep(block(i)));
    recomputing.push_back(recompute({&block(i), 1}, inputs[i]));
    most_parameters.push_back(block(i).parameter_bytes);
    least_parameters.push_back(-block(i).parameter_bytes);
    longest.push_back(block(i).seconds());
    shortest.push_back(-block(i).backward());
  }
  sums.keeping = BytesOfStages(std::move(keeping));
  sums.recomputing = BytesOfStages(std::move(recomputing));
  sums.most_alone = RangeMaximum(std::move(alone));
  sums.most_parameters = RangeMaximum(std::move(most_parameters));
  sums.least_parameters = RangeMaximum(std::move(least_parameters));
  sums.longest_backward = RangeMaximum(std::move(longest));
  sums.shortest_backward = RangeMaximum(std::move(shortest));
  return sums;
}

StageCost StepModel::stage(const StepSettings& settings, size_t begin, size_t end, int used,
                           int replicas) const {
  const auto& place = place_of(settings, used, replicas);
  StageCost cost;
  const auto sums = axis_sums(settings, begin, end, place, replicas);
  const auto passes = pass_seconds(settings, begin, end, place, replicas, sums);
  add_schedule(cost, settings, passes, used, replicas);
  cost.exposed = exposed_seconds(settings, begin, end, place, replicas);
  cost.memory_bytes = stage_memory(settings, begin, end, used, replicas).sum();
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

StepPlan StepModel::price(const StepSettings& settings,
                          const std::vector<StepStage>& stages) const {
  auto plan = estimate(settings, stages);
  if (is_replayed(settings)) plan.seconds = replayed_seconds(settings, stages);
  return plan;
}

StepPlan StepModel::estimate(const StepSettings& settings,
                             const std::vector<StepStage>& stages) const {
  StepPlan plan{.settings = settings, .stages = stages, .lacking_bytes = -kUnlimitedBytes};
  PartialCost sum;
  auto wire = before_first(settings);
  size_t begin = 0;
  int used = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto& [end, replicas] = stages[i];
    const auto own = stage(settings, begin, end, used, replicas);
    sum.add(wire, own);
    plan.memory_bytes.push_back(own.memory_bytes);
    plan.lacking_bytes = std::max(plan.lacking_bytes, own.lacking_bytes);
    if (i + 1 < stages.size()) {
      wire = boundary(settings, end, used, replicas, stages[i + 1].replicas);
    }
    begin = end;
    used += replicas;
  }
  plan.seconds = sum.seconds();
  return plan;
}

// The passes of all micro-batches in a stage take at least its pass times (micro-batches /
// replicas). The maximum over stages is at least their mean weighted by replicas, and this mean is
// at least the value for one stage on all devices.
StepModel::Least StepModel::least(const StepSettings& settings, size_t begin, int devices) const {
  const auto& sums = shard_of(settings).sums;
  const auto& axis = sums.fastest_axis;
  const auto& exposed = sums.exposed;
  const auto rest = [&](const std::vector<double>& sum) {
    return (sum.back() - sum[begin]) * sums.least_slowness;
  };
  const double again = settings.recompute ? rest(sums.forward) : 0;
  const double on_axis = axis_forward_seconds(settings, axis, exposed, begin, blocks());
  // Passes that take turns hide at most the shorter of both.
  const double hidden = settings.tensor_overlap ? std::min(rest(sums.forward), on_axis) : 0;
  const double forward = rest(sums.forward) + on_axis - hidden;
  const double pass = rest(sums.forward) + again + rest(sums.input) + rest(sums.weight) +
                      axis_seconds(settings, axis, exposed, false, begin, blocks()) - hidden;
  const double all = static_cast<double>(micro_batches_[settings.profile]) / devices;
  const double others = std::max(0.0, all - 1);  // after the first one
  switch (settings.family) {
    case StepFamily::no_flushes:
      return {.steady = all * pass};
    case StepFamily::zero_bubble:
      return {.latency = pass - rest(sums.weight), .whole = all * pass};
    case StepFamily::gpipe:
      return {.latency = pass, .steady = others * forward, .backward = others * (pass - forward)};
    default:
      return {.latency = pass, .steady = others * pass};
  }
}

double StepModel::lower_bound() const {
  double least = kUnlimitedBytes;
  for (size_t i = 0; i < problem_.profiles.size(); ++i) {
    if (micro_batches_[i] == 0) continue;
    for (const auto& axes : axes_) {
      const StepSettings settings{.profile = i, .axes = axes};
      const auto& sums = shard_of(settings).sums;
      const double once = sums.forward.back() + sums.input.back() + sums.weight.back();
      double on_axis = axis_seconds(settings, sums.fastest_axis, sums.exposed, false, 0, blocks());
      if (axes.tensor > 1) {
        // Passes that take turns hide at most the shorter of both.
        on_axis -=
            std::min(sums.forward.back() * sums.least_slowness,
                     axis_forward_seconds(settings, sums.fastest_axis, sums.exposed, 0, blocks()));
      }
      const double groups = problem_.cluster.ranks() / axes.ranks();
      least = std::min(least, (once * sums.least_slowness + on_axis) * micro_batches_[i] / groups);
    }
  }
  return least;
}

}  // namespace troika::plan
