// The times of pipelines that wait for round trips, pass by pass.
#include <algorithm>
#include <limits>

#include "troika/layout/schedules/complete.h"
#include "troika/plan/search/step_choices.h"
#include "troika/plan/search/step_model.h"
#include "troika/plan/search/step_order.h"
#include "troika/plan/simulation/pass_replay.h"

namespace troika::plan {

bool StepModel::is_replayed(const StepSettings& settings) {
  return settings.family == StepFamily::pipeline || settings.family == StepFamily::pipeline_rows ||
         settings.family == StepFamily::zero_bubble ||
         (settings.family == StepFamily::gpipe && settings.tensor_overlap);
}

PassSeconds StepModel::mean_pass(const StepSettings& settings, size_t begin, size_t end, int used,
                                 int replicas) const {
  const auto& place = place_of(settings, used, replicas);
  const auto sums = axis_sums(settings, begin, end, place, replicas);
  const auto pass = pass_seconds(settings, begin, end, place, replicas, sums);
  const double first = shard_of(settings).profile.in_step.first_micro_batch_factor;
  const double factor = 1 + (first - 1) / own_micro_batches(settings, replicas);
  const auto longer = [&](double all, double waits) { return (all - waits) * factor + waits; };
  return {.forward = longer(pass.forward, sums.forward),
          .input = longer(pass.input, sums.backward),
          .weight = longer(pass.weight, 0),
          .first_forward = longer(pass.first_forward, sums.first_forward),
          .last_forward = longer(pass.last_forward, sums.last_forward)};
}

double StepModel::exposed(const StepSettings& settings, size_t begin, int used,
                          const StepStage& stage) const {
  const auto& place = place_of(settings, used, stage.replicas);
  return exposed_seconds(settings, begin, stage.end, place, stage.replicas);
}

StepModel::LeastMessage StepModel::least_message(const StepSettings& settings, size_t end, int used,
                                                 int replicas, int next_replicas) const {
  const auto& crossing = crossing_of(settings, used, replicas, next_replicas);
  const double bytes = shard_of(settings).sums.crossing[end] / problem_.compression_ratio;
  LeastMessage least{.latency = std::numeric_limits<double>::infinity(),
                     .flow = std::numeric_limits<double>::infinity()};
  const auto take = [&](const layout::Link& wire) {
    least.latency = std::min(least.latency, wire.latency);
    least.flow = std::min(least.flow, bytes * wire.seconds_per_byte());
  };
  for (const auto level : {layout::Level::group, layout::Level::host}) {
    if (crossing.has_level[static_cast<size_t>(level)]) take(link(settings.profile, level));
  }
  for (const auto& port : crossing.ports) take(links_[settings.profile].network(port.rank));
  return least;
}

double StepModel::replayed_share(const StepSettings& settings, const Crossing& crossing, int fewer,
                                 int from, int to) const {
  const auto& links = links_[settings.profile];
  const double own = layout::slower(links.network(from), links.network(to)).seconds_per_byte();
  double share = 1;
  for (const auto& port : crossing.ports) {
    const double slowness = own > 0 ? links.network(port.rank).seconds_per_byte() / own : 1;
    share = std::max(share, std::max(1.0, port.share * fewer) * slowness);
  }
  return share;
}

// Replicas of even stages have the same times. With many of them, one is replayed, whose messages
// are as large as those that share its ports.
double StepModel::replayed_seconds(const StepSettings& settings,
                                   const std::vector<StepStage>& stages) const {
  const auto order = step_order(settings, stages, micro_batches_[settings.profile]);
  const bool one_of_all = is_even(stages) && settings.groups() > kMostExactDevices;
  ReplayedPipeline pipeline{.has_own_micro_batches = is_even(stages)};
  std::vector<double> after;  // the last pass of each stage
  size_t begin = 0;
  int used = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto& [end, replicas] = stages[i];
    const auto pass = mean_pass(settings, begin, end, used, replicas);
    after.push_back(exposed(settings, begin, used, stages[i]));
    auto& ranks = pipeline.stages.emplace_back();
    for (int replica = 0; replica < (one_of_all ? 1 : replicas); ++replica) {
      const auto& passes = order.ranks[i];
      ranks.push_back({.stage = static_cast<int>(i),
                       .replica = replica,
                       .device = rank_of(settings, used, replicas, replica),
                       .passes = pipeline.has_own_micro_batches
                                     ? passes
                                     : layout::actions_of_replica(passes, replica, replicas),
                       .forward = pass.last_forward,
                       .backward_input = pass.input,
                       .backward_weight = pass.weight,
                       .pair = pass.first_forward});
    }
    if (i + 1 < stages.size()) {
      pipeline.output_bytes.push_back(shard_of(settings).sums.crossing[end] /
                                      problem_.compression_ratio);
      const int from = ranks.front().device, next = stages[i + 1].replicas;
      const int to = rank_of(settings, used + replicas, next, 0);
      if (device(from).host != device(to).host) {
        // Each rank that computes the stage sends its message.
        const auto& crossing = crossing_of(settings, used, replicas, next);
        pipeline.output_bytes.back() *=
            one_of_all ? replayed_share(settings, crossing, std::min(replicas, next), from, to)
                       : settings.axes.ranks();
      }
    }
    begin = end;
    used += replicas;
  }
  const auto ends = replay_passes(pipeline, links_[settings.profile]);
  double seconds = 0;
  for (size_t i = 0; i < ends.size(); ++i) seconds = std::max(seconds, ends[i] + after[i]);
  return seconds;
}

}  // namespace troika::plan
