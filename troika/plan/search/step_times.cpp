// The times of stages and messages under a schedule.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "troika/plan/search/step_model.h"
#include "troika/plan/simulation/collectives.h"

namespace troika::plan {

using layout::Link;

namespace {

double ring_seconds(const Link& link, double share, int ranks, double bytes) {
  if (ranks == 1) return 0;
  return 2.0 * (ranks - 1) * (link.latency + bytes / ranks * share * link.seconds_per_byte());
}

}  // namespace

double StepModel::average_seconds(const Place& place, int replicas, double bytes) const {
  if (bytes <= 0 || replicas == 1) return 0;
  if (place.hosts == 1) return ring_seconds(place.inside, 1, replicas, bytes);
  const double flat = ring_seconds(place.between, place.share, replicas, bytes);
  const double levels = ring_seconds(place.inside, 1, place.fullest, bytes) +
                        ring_seconds(place.between, place.share, place.hosts, bytes);
  return std::min(flat, levels);
}

double StepModel::summation_seconds(const StepSettings& settings, int replicas,
                                    double bytes) const {
  if (bytes <= 0 || replicas == 1) return 0;
  const auto& links = links_[settings.profile];
  std::vector<int> ranks(static_cast<size_t>(replicas));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int> spares(problem_.cluster.spares.size());
  std::iota(spares.begin(), spares.end(), problem_.cluster.ranks());
  const auto bandwidths = links.bandwidths();
  double seconds = 0;
  for (const auto& phase : collective_phases({.kind = CollectiveKind::summation,
                           .bytes = bytes,
                           .spares = spares,
                           .sums_on_hosts = true},
                                             ranks, links)) {
    double longest = 0;
    for (const auto& use : phase.uses) {
      longest = std::max(longest, use.weight / bandwidths[static_cast<size_t>(use.link)]);
    }
    seconds += phase.seconds + phase.bytes * longest;
  }
  return seconds;
}

PassSeconds StepModel::pass_seconds(const StepSettings& settings, size_t begin, size_t end,
                                    const Place& place, int replicas) const {
  const auto& shard = shard_of(settings);
  const auto& profile = shard.profile;
  const auto& sums = shard.sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const double again = settings.recompute ? part(sums.forward) : 0;
  const double once = part(sums.forward) + again + part(sums.input) + part(sums.weight);
  // ZeRO stage 3 waits for the latest replica in each block.
  const double late = (settings.zero_stage == 3 ? part(sums.deviation)
                                                : std::sqrt(std::max(0.0, part(sums.variance)))) *
                          place.lateness +
                      part(sums.deviation) * place.axis_lateness;
  // ZeRO stage 3 gathers parameters for both passes, and then scatters gradients.
  const double bytes = part(sums.parameters);
  const double gathered = replicas > 1 ? profile.gather_seconds(bytes) : 0;
  const double gathers =
      settings.zero_stage == 3 ? average_seconds(place, replicas, bytes) + 2 * gathered : 0;
  const double scale = once > 0 ? (once + late) / once * place.slowness : 0;
  const double on_axis = axis_seconds(settings, place.axis, begin, end);
  const double forward_on_axis = axis_forward_seconds(settings, place.axis, begin, end);
  const double weight = part(sums.weight) * scale;
  const bool splits = splits_backward(settings, begin, end);
  return {.forward = part(sums.forward) * scale + forward_on_axis,
          .input = (again + part(sums.input)) * scale + on_axis - forward_on_axis + gathers +
                   offload_seconds(settings).pass + (splits ? 0 : weight),
          .weight = splits ? weight : 0,
          .longer = (profile.in_step.first_micro_batch_factor - 1) * once * place.slowness};
}

int StepModel::in_flight(const StepSettings& settings, int used, int replicas) const {
  const bool waits =
      settings.family != StepFamily::one_stage && settings.family != StepFamily::gpipe;
  return waits ? (settings.groups() - used + replicas - 1) / replicas * replicas : 0;
}

void StepModel::add_schedule(StageCost& cost, const StepSettings& settings,
                             const PassSeconds& passes, int used, int replicas) const {
  const int count = micro_batches_[settings.profile];
  const int own = (count + replicas - 1) / replicas;
  const double pass = passes.all();
  const auto some = [&](int number) { return std::max(0, number); };
  cost.around = pass;
  cost.between = std::min(passes.forward, pass - passes.forward);
  cost.in_flight = in_flight(settings, used, replicas);
  cost.replicas = replicas;
  cost.rounds = some(count - replicas);
  switch (settings.family) {
    case StepFamily::no_flushes:
      cost.rounds = count;
      cost.steady = own * pass;
      break;
    case StepFamily::zero_bubble: {
      // A stage puts off as many weight parts as there are stages before it.
      const int before = used / replicas, later = own - cost.in_flight / replicas;
      cost.latency = passes.forward + passes.input + (used == 0 ? passes.weight : 0);
      // The stage waits for its first micro-batch to come back, or for its last one.
      const double first = (own - 1) * passes.input + some(later) * passes.forward +
                           some(own - 1 - before) * passes.weight;
      const double last = (own - 1) * passes.forward + some(later) * passes.input +
                          some(later - before) * passes.weight;
      cost.steady = std::max(first, last);
      cost.whole = own * pass + passes.longer;
      cost.fill = passes.forward;
      cost.around = passes.forward + passes.input;
      cost.turn = passes.weight;
      cost.between = std::min(passes.forward + passes.weight, passes.input);
      break;
    }
    case StepFamily::gpipe:
      cost.latency = pass;
      cost.steady = (own - 1) * passes.forward;
      cost.backward = (own - 1) * (pass - passes.forward);
      break;
    default:
      cost.latency = pass;
      cost.steady = (own - 1) * pass;
  }
  cost.steady += passes.longer;
}

double StepModel::exposed_seconds(const StepSettings& settings, size_t begin, size_t end,
                                  const Place& place, int replicas) const {
  const auto& shard = shard_of(settings);
  const auto& profile = shard.profile;
  const auto& sums = shard.sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const double bytes = part(sums.parameters);
  const double average = settings.sums ? summation_seconds(settings, replicas, bytes)
                                       : average_seconds(place, replicas, bytes);
  // The gradients of the stage's first block are averaged after the whole backward pass.
  const auto& first = profile.blocks[order_[begin]];
  const bool is_zero = settings.zero_stage > 0;
  const double sharing = is_zero ? replicas : 1;
  const double reduced = is_zero ? average / 2 : average;
  const double hidden = (part(sums.input) + part(sums.weight) - first.backward() +
                         (settings.recompute ? part(sums.forward) - first.forward : 0)) *
                        place.slowness;
  const double last = bytes > 0 ? reduced * first.parameter_bytes / bytes : 0;
  double exposed = std::max(last, reduced - profile.in_step.overlap * std::min(hidden, reduced));
  if (is_zero && settings.zero_stage < 3) {
    exposed += average / 2 + (replicas > 1 ? profile.gather_seconds(bytes) : 0);
  }
  if (profile.optimizer_bytes_per_second > 0) {
    exposed += bytes / sharing / profile.optimizer_bytes_per_second * place.slowness;
  }
  return exposed + offload_seconds(settings).optimizer / sharing;
}

WireCost StepModel::before_first(const StepSettings& settings) const {
  const bool flushes = settings.family != StepFamily::no_flushes;
  return {.rounds = micro_batches_[settings.profile] - (flushes ? 1 : 0)};
}

WireCost StepModel::boundary(const StepSettings& settings, size_t end, int used, int replicas,
                             int next_replicas) const {
  const double bytes = shard_of(settings).sums.crossing[end] / problem_.compression_ratio;
  const auto& crossing = crossing_of(settings, used, replicas, next_replicas);
  const int fewer = std::min(replicas, next_replicas);
  auto cost = before_first(settings);
  const bool flushes = settings.family != StepFamily::no_flushes;
  // The first micro-batches of all replicas are on their way at the same time.
  const int first = flushes ? std::min(fewer, micro_batches_[settings.profile]) : 0;
  cost.port_rounds = micro_batches_[settings.profile] - first;
  for (const auto level : {layout::Level::group, layout::Level::host, layout::Level::network}) {
    const auto index = static_cast<size_t>(level);
    if (!crossing.has_level[index]) continue;
    const auto wire = link(settings.profile, level);
    const double seconds = bytes * wire.seconds_per_byte();
    const double share = level == layout::Level::network ? crossing.port_share : 1.0 / fewer;
    cost.ports[index] = share * seconds;
    cost.flows[index] = std::max(1.0, share * fewer) * seconds;
    cost.seconds = std::max(cost.seconds, wire.latency + cost.flows[index]);
  }
  if (flushes) cost.latency = 2 * cost.seconds;
  if (settings.family == StepFamily::zero_bubble) cost.fill = cost.seconds;
  cost.alternates = settings.family != StepFamily::gpipe;
  return cost;
}

}  // namespace troika::plan
