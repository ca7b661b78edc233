// The times of stages and messages under a schedule.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "troika/plan/search/step_model.h"
#include "troika/plan/simulation/collectives.h"
#include "troika/plan/simulation/summation_links.h"

namespace troika::plan {

using layout::Link;

namespace {

// An all-reduce, or a reduce-scatter and an all-gather. `share` is that of the link's bandwidth.
double ring_seconds(const Link& link, double share, int ranks, double bytes) {
  if (ranks == 1) return 0;
  return 2.0 * (ranks - 1) * (link.latency + bytes / ranks * share * link.seconds_per_byte());
}

std::vector<int> consecutive(int first, size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace

double StepModel::average_seconds(const Place& place, int copies, double bytes) const {
  if (bytes <= 0 || copies == 1) return 0;
  if (place.hosts == 1) return ring_seconds(place.inside, 1, copies, bytes);
  double flat = ring_seconds(place.between, place.share, copies, bytes);
  if (place.fullest == 1) return flat;
  // The messages of a round inside hosts and between them progress together.
  flat = std::max(flat, ring_seconds(place.inside, 1, copies, bytes));
  const double levels = ring_seconds(place.inside, 1, place.fullest, bytes) +
                        ring_seconds(place.between, place.share, place.hosts, bytes);
  return std::min(flat, levels);
}

double StepModel::sharded_seconds(const Place& place, int copies, double bytes) const {
  if (bytes <= 0 || copies == 1) return 0;
  if (place.hosts == 1 || place.fullest == 1) return average_seconds(place, copies, bytes);
  const double sent = bytes * (place.hosts - 1) / place.hosts;
  return ring_seconds(place.inside, 1, place.fullest, bytes) +
         2 * (place.between.latency + sent * place.share * place.between.seconds_per_byte());
}

double StepModel::summation_seconds(const StepSettings& settings, int replicas,
                                    double bytes) const {
  if (bytes <= 0 || replicas == 1) return 0;
  const auto& links = links_[settings.profile];
  return seconds_alone(collective_phases({.kind = CollectiveKind::summation,
                                          .bytes = bytes,
                                          .spares = spare_devices(),
                                          .links = links_of_sums(settings, replicas),
                                          .sums_on_hosts = true},
                                         consecutive(0, static_cast<size_t>(replicas)), links),
                       links.bandwidths());
}

std::vector<int> StepModel::spare_devices() const {
  return consecutive(problem_.cluster.ranks(), problem_.cluster.spares.size());
}

std::vector<int> StepModel::summation_workers(const StepSettings& settings, int replicas) const {
  return summing_ranks(consecutive(0, static_cast<size_t>(replicas)), links_[settings.profile]);
}

std::string StepModel::links_of_sums(const StepSettings& settings, int replicas) const {
  const auto& links = links_[settings.profile];
  const auto workers = summation_workers(settings, replicas), spares = spare_devices();
  std::set<double> bandwidths;
  for (const auto* devices : {&workers, &spares}) {
    for (const int device : *devices) bandwidths.insert(links.network(device).bandwidth);
  }
  if (bandwidths.size() == 1) return {};
  const auto rates = measured_rates(workers, spares, links);
  const bool are_known =
      std::ranges::all_of(rates, [](double rate) { return std::isfinite(rate); });
  return are_known ? std::string(layout::kMeasuredBandwidths) : std::string();
}

double StepModel::most_summed(const StepSettings& settings, int replicas) const {
  const auto split =
      summation_split(links_of_sums(settings, replicas), summation_workers(settings, replicas),
                      spare_devices(), links_[settings.profile]);
  return std::ranges::max(split.workers);
}

double StepModel::scale_of_passes(const StepSettings& settings, size_t begin, size_t end,
                                  const Place& place) const {
  const auto& sums = shard_of(settings).sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const double once = part(sums.forward) + part(sums.input) + part(sums.weight);
  // ZeRO stage 3 waits for the latest replica in each block.
  const double late = (settings.zero_stage == 3 ? part(sums.deviation)
                                                : std::sqrt(std::max(0.0, part(sums.variance)))) *
                          place.lateness +
                      part(sums.deviation) * place.axis_lateness;
  return once > 0 ? (once + late) / once * place.slowness : 0;
}

PassSeconds StepModel::pass_seconds(const StepSettings& settings, size_t begin, size_t end,
                                    const Place& place, int replicas,
                                    const AxisSums& on_axis) const {
  const auto& shard = shard_of(settings);
  const auto& sums = shard.sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const double again = settings.recompute ? part(sums.forward) : 0;
  const double scale = scale_of_passes(settings, begin, end, place);
  const int copies = settings.copies(replicas);
  const double weight = part(sums.weight) * scale;
  const bool splits = splits_backward(settings, begin, end);
  const auto gathered = [&](double pass) {
    return gather(settings, begin, end, place, copies, pass * scale).exposed;
  };
  const double once = part(sums.forward) + again + part(sums.input) + part(sums.weight);
  const double own = part(sums.forward) * scale + gathered(part(sums.forward));
  const int together = settings.passes_together();
  const bool is_last_alone = own_micro_batches(settings, replicas) % together > 0;
  return {.forward = own + on_axis.forward,
          .input = (again + part(sums.input)) * scale + on_axis.backward +
                   gathered(again + part(sums.input) + part(sums.weight)) +
                   offload_seconds(settings).pass + (splits ? 0 : weight),
          .weight = splits ? weight : 0,
          .longer = (shard.profile.in_step.first_micro_batch_factor - 1) * once * scale,
          .first_forward = together * own + on_axis.first_forward,
          .last_forward = (is_last_alone ? 1 : together) * own + on_axis.last_forward};
}

int StepModel::in_flight(const StepSettings& settings, int used, int replicas) const {
  const bool waits =
      settings.family != StepFamily::one_stage && settings.family != StepFamily::gpipe;
  const int rounds = (settings.groups() - used + replicas - 1) / replicas;
  return waits ? rounds * replicas * settings.passes_together() : 0;
}

void StepModel::add_schedule(StageCost& cost, const StepSettings& settings,
                             const PassSeconds& passes, int used, int replicas) const {
  const int count = micro_batches_[settings.profile];
  const int own = own_micro_batches(settings, replicas);
  const int together = settings.passes_together();
  const double pass = passes.all(), backward = pass - passes.forward;
  const auto some = [&](int number) { return std::max(0, number); };
  cost.around = passes.first_forward + backward;
  cost.turn = (together - 1) * backward;
  cost.between = std::min(passes.forward, backward);
  cost.in_flight = in_flight(settings, used, replicas);
  cost.replicas = replicas * together;
  cost.rounds = some(count - replicas);
  switch (settings.family) {
    case StepFamily::no_flushes:
      cost.rounds = count;
      cost.steady = own * pass;
      break;
    case StepFamily::zero_bubble: {
      // A stage puts off as many weight parts as there are stages before it.
      const int before = used / replicas * together, later = own - cost.in_flight / replicas;
      cost.latency = passes.first_forward + passes.input + (used == 0 ? passes.weight : 0);
      // The stage waits for its first micro-batch to come back, or for its last one.
      const double first = (own - 1) * passes.input + some(later) * passes.forward +
                           some(own - 1 - before) * passes.weight;
      const double last = (own - 1) * passes.forward + some(later) * passes.input +
                          some(later - before) * passes.weight;
      cost.steady = std::max(first, last);
      cost.whole = own * pass + passes.longer;
      cost.fill = passes.first_forward;
      cost.around = passes.first_forward + passes.input;
      cost.turn = (together - 1) * passes.input + together * passes.weight;
      cost.between = std::min(passes.forward + passes.weight, passes.input);
      break;
    }
    case StepFamily::gpipe:
      cost.latency = passes.first_forward + backward;
      cost.steady = (own - 1) * passes.forward;
      cost.backward = (own - 1) * backward;
      break;
    default:
      cost.latency = passes.first_forward + backward;
      cost.steady = (own - 1) * pass;
  }
  // The latency counts a forward pass of another micro-batch, which takes turns with the first one.
  cost.steady = std::max(0.0, cost.steady - (passes.first_forward - passes.forward));
  cost.steady += passes.longer;
}

double StepModel::part_after_gather(const StepSettings& settings, size_t begin, size_t end) const {
  const auto& shard = shard_of(settings);
  const auto& profile = shard.profile;
  const auto& sums = shard.sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const double both = part(sums.forward) + part(sums.input) + part(sums.weight);
  if (end - begin == 1 || both == 0) return 1;
  const auto &first = profile.blocks[order_[begin]], &last = profile.blocks[order_[end - 1]];
  return (last.forward + first.backward()) / both;
}

StepModel::Gather StepModel::gather(const StepSettings& settings, size_t begin, size_t end,
                                    const Place& place, int copies, double pass) const {
  if (settings.zero_stage < 3 || copies == 1) return {};
  const auto& shard = shard_of(settings);
  const double bytes = shard.sums.parameters[end] - shard.sums.parameters[begin];
  const double seconds =
      sharded_seconds(place, copies, bytes) / 2 + shard.profile.gather_seconds(bytes);
  const double hidden = shard.profile.in_step.overlap *
                        std::min(seconds, pass * (1 - part_after_gather(settings, begin, end)));
  return {.exposed = seconds - hidden, .hidden = hidden};
}

std::pair<size_t, size_t> StepModel::latest_buckets(const StepSettings& settings, size_t begin,
                                                    size_t end, const Place& place,
                                                    double per_byte) const {
  constexpr double kRounding = 1e-6;
  const auto& sums = shard_of(settings).sums;
  static const layout::GradientExchange exchange;
  const double least = -sums.least_parameters.of(begin, end);
  if (least < static_cast<double>(std::max(exchange.first_bucket_bytes, exchange.bucket_bytes))) {
    return {begin, end};
  }
  // A reduction beside the backward pass of the block before ends before this pass, or after it.
  const double slowest = per_byte * sums.most_parameters.of(begin, end);
  if (slowest * (1 + kRounding) < -sums.shortest_backward.of(begin, end) * place.slowness) {
    return {begin, begin + 1};
  }
  const double longest = sums.longest_backward.of(begin, end) * place.slowness;
  if (per_byte * least > longest * (1 + kRounding)) return {end - 1, end};
  return {begin, end};
}

double StepModel::exposed_reduction(const StepSettings& settings, size_t begin, size_t end,
                                    const Place& place, int copies, double seconds) const {
  const auto& shard = shard_of(settings);
  const auto& profile = shard.profile;
  const auto& sums = shard.sums;
  const double bytes = sums.parameters[end] - sums.parameters[begin];
  if (seconds <= 0 || bytes <= 0) return 0;
  const double overlap = profile.in_step.overlap;
  const auto backward = [&](size_t until) {
    const auto part = [&](const std::vector<double>& sum) { return sum[until] - sum[begin]; };
    return (part(sums.input) + part(sums.weight) + (settings.recompute ? part(sums.forward) : 0)) *
           place.slowness;
  };
  // Gathers for the pass are under way before.
  const double whole = backward(end);
  const double hidden = gather(settings, begin, end, place, copies, whole).hidden;
  const double most = whole - hidden;
  static const layout::GradientExchange exchange;
  const double exposed_per_byte = overlap * seconds / bytes;
  double late = 0, in_bucket = 0;
  auto limit = static_cast<double>(exchange.first_bucket_bytes);
  const auto latest = hidden == 0 ? latest_buckets(settings, begin, end, place, exposed_per_byte)
                                  : std::pair(begin, end);
  for (size_t i = latest.second; i-- > latest.first;) {
    const double own = sums.parameters[i + 1] - sums.parameters[i];
    if (own == 0) continue;
    in_bucket += own;
    const double before = sums.parameters[i] - sums.parameters[begin];
    if (in_bucket < limit && before > 0) continue;
    late = std::max(late, exposed_per_byte * (before + in_bucket) - std::min(most, backward(i)));
    in_bucket = 0;
    limit = static_cast<double>(exchange.bucket_bytes);
  }
  return (1 - overlap) * seconds + late;
}

double StepModel::exposed_seconds(const StepSettings& settings, size_t begin, size_t end,
                                  const Place& place, int replicas) const {
  const auto& shard = shard_of(settings);
  const auto& profile = shard.profile;
  const auto& sums = shard.sums;
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const double bytes = part(sums.parameters);
  const int copies = settings.copies(replicas);
  const bool is_zero = settings.zero_stage > 0;
  const double sharing = is_zero ? copies : 1;
  const double average = is_zero         ? sharded_seconds(place, copies, bytes)
                         : settings.sums ? summation_seconds(settings, replicas, bytes)
                                         : average_seconds(place, copies, bytes);
  double exposed =
      exposed_reduction(settings, begin, end, place, copies, is_zero ? average / 2 : average);
  if (is_zero && settings.zero_stage < 3) {
    exposed += average / 2 + (copies > 1 ? profile.gather_seconds(bytes) : 0);
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
  const auto add = [&](layout::Level level, const Link& wire, double share) {
    auto &port = cost.ports[static_cast<size_t>(level)],
         &flow = cost.flows[static_cast<size_t>(level)];
    const double seconds = bytes * wire.seconds_per_byte();
    port = std::max(port, share * seconds);
    flow = std::max(flow, std::max(1.0, share * fewer) * seconds);
    cost.seconds = std::max(cost.seconds, wire.latency + flow);
  };
  for (const auto level : {layout::Level::group, layout::Level::host}) {
    if (!crossing.has_level[static_cast<size_t>(level)]) continue;
    add(level, link(settings.profile, level), 1.0 / fewer);
  }
  for (const auto& port : crossing.ports) {
    add(layout::Level::network, links_[settings.profile].network(port.rank), port.share);
  }
  const double flow = std::ranges::max(cost.flows);  // of a message
  // The outputs of passes that take turns leave together.
  const double there = cost.seconds + (settings.passes_together() - 1) * flow;
  if (flushes) cost.latency = there + cost.seconds;
  if (settings.family == StepFamily::zero_bubble) cost.fill = there;
  cost.alternates = settings.family != StepFamily::gpipe;
  return cost;
}

}  // namespace troika::plan
