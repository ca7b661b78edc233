#include "troika/plan/search/step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/device_rates.h"
#include "troika/plan/errors/refuse.h"

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
  order_ = problem_.profiles.front().topological_order();
  for (const auto& profile : problem_.profiles) {
    const double count = problem_.global_batch / profile.micro_batch;
    constexpr double kMost = 1e6;
    const bool divides = count >= 1 && count <= kMost && count == std::floor(count);
    micro_batches_.push_back(divides ? static_cast<int>(count) : 0);
    sums_.push_back(sums_of(profile));
    sums_.back().slowness = layout::device_slowness(problem_.cluster, profile.device_flops);
    sums_.back().least_slowness = std::ranges::min(sums_.back().slowness);
  }
  if (std::ranges::max(micro_batches_) == 0) {
    refuse("samples of an optimizer step", fmt::format("{}", problem_.global_batch),
           fmt::format("a multiple of a profile's micro-batch, as {}, at most 10^6 times",
                       problem_.profiles.front().micro_batch));
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
  add(sums.saved, [&](size_t i) { return block(i).saved_bytes; });
  add(sums.inputs, [&](size_t i) { return inputs[i]; });
  add(sums.parameters, [&](size_t i) { return block(i).parameter_bytes; });
  const auto maximum = [&](auto&& value) {
    std::vector<double> values;
    for (size_t i = 0; i < count; ++i) values.push_back(value(block(i)));
    return RangeMaximum(std::move(values));
  };
  sums.workspace = maximum([](const auto& one) { return one.workspace_bytes; });
  sums.saved_and_workspace =
      maximum([](const auto& one) { return one.saved_bytes + one.workspace_bytes; });
  sums.largest_parameters = maximum([](const auto& one) { return one.parameter_bytes; });
  return sums;
}

int StepModel::rank_of(const StepSettings& settings, int used, int replicas, int replica) const {
  if (settings.family != StepFamily::pipeline_rows) return used + replica;
  return replica * (settings.devices / replicas) + used / replicas;
}

Link StepModel::link(size_t profile, layout::Level level) const {
  const auto& cluster = problem_.cluster;
  const auto& measured = problem_.profiles[profile];
  const auto known = [](const Link& one, const Link& other) {
    return one.bandwidth > 0 || one.latency > 0 ? one : other;
  };
  switch (level) {
    case layout::Level::group:
      return known(cluster.group, measured.group.link);
    case layout::Level::host:
      return known(cluster.host, measured.host.link);
    default:
      return known(cluster.network, measured.network.link);
  }
}

int StepModel::arrangement(const StepSettings& settings) {
  return settings.family == StepFamily::pipeline_rows ? settings.devices : 0;
}

const StepModel::Place& StepModel::place_of(const StepSettings& settings, int used,
                                            int replicas) const {
  const std::array key{static_cast<int>(settings.profile), arrangement(settings), used, replicas};
  const auto found = places_.find(key);
  if (found != places_.end()) return found->second;
  return places_[key] = find_place(settings, used, replicas);
}

StepModel::Place StepModel::find_place(const StepSettings& settings, int used, int replicas) const {
  const auto& cluster = problem_.cluster;
  Place place{.slowness = 0, .capacity = kUnlimitedBytes};
  std::map<int, int> ranks_of_hosts;
  std::set<std::pair<int, int>> groups;
  for (int i = 0; i < replicas; ++i) {
    const int rank = rank_of(settings, used, replicas, i);
    const auto& device = cluster.devices_of(rank);
    place.slowness =
        std::max(place.slowness, sums_[settings.profile].slowness[static_cast<size_t>(rank)]);
    const double memory = problem_.memory_bytes.value_or(static_cast<double>(device.memory_bytes));
    if (memory > 0 || problem_.memory_bytes) place.capacity = std::min(place.capacity, memory);
    ++ranks_of_hosts[device.host];
    groups.emplace(device.host, device.group);
  }
  place.lateness = std::sqrt(2 * std::log(static_cast<double>(replicas)));
  place.hosts = static_cast<int>(ranks_of_hosts.size());
  for (const auto& [host, count] : ranks_of_hosts) place.fullest = std::max(place.fullest, count);
  const bool in_groups = static_cast<int>(groups.size()) == place.hosts;
  place.inside = link(settings.profile, in_groups ? layout::Level::group : layout::Level::host);
  place.between = link(settings.profile, layout::Level::network);
  if (settings.family == StepFamily::pipeline_rows) {
    // All stages average at the same time.
    int on_host = 0;
    const int host = cluster.devices_of(rank_of(settings, used, replicas, 0)).host;
    for (int rank = 0; rank < settings.devices; ++rank) {
      on_host += cluster.devices_of(rank).host == host ? 1 : 0;
    }
    place.share = static_cast<double>(on_host) / ranks_of_hosts[host];
  }
  return place;
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
  const auto& profile = problem_.profiles[settings.profile];
  const auto& sums = sums_[settings.profile];
  const auto& place = place_of(settings, used, replicas);
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const int count = micro_batches_[settings.profile];
  const int own = (count + replicas - 1) / replicas;
  const double zero = replicas;

  const double bytes = part(sums.parameters);
  const double average = average_seconds(place, replicas, bytes);

  const double once = part(sums.forward) + part(sums.input) + part(sums.weight);
  const double late = part(sums.deviation) * place.lateness;
  const double again = settings.recompute ? part(sums.forward) : 0;
  // ZeRO stage 3 gathers parameters for both passes, and then scatters gradients.
  const double gathers = settings.zero_stage == 3 ? average : 0;
  const double pass = (once + again + late) * place.slowness + gathers;
  Cost cost;
  cost.latency = pass;
  if (settings.family == StepFamily::zero_bubble) {
    // In zb-h1, the weight parts of backward passes fill the waits.
    const double waits =
        (part(sums.forward) + again + part(sums.input) - part(sums.weight)) * place.slowness;
    cost.latency = std::clamp(waits, 0.0, pass);
  }
  cost.steady = own * pass - cost.latency;
  // The gradients of the stage's first block are averaged after the whole backward pass.
  const auto& first = profile.blocks[order_[begin]];
  const double reduced = settings.zero_stage == 3 ? average / 2 : average;
  const double hidden = (part(sums.input) + part(sums.weight) + again - first.backward() -
                         (settings.recompute ? first.forward : 0)) *
                        place.slowness;
  const double last = bytes > 0 ? reduced * first.parameter_bytes / bytes : 0;
  cost.exposed = std::max(last, reduced - hidden);

  int kept = (settings.devices - used + replicas - 1) / replicas;
  if (settings.family == StepFamily::zero_bubble) kept = settings.devices / replicas;
  kept = std::min(kept, own);
  const double activations = settings.recompute ? part(sums.inputs) : part(sums.saved);
  cost.memory_bytes = bytes * profile.optimizer_factor / (settings.zero_stage >= 1 ? zero : 1) +
                      bytes / (settings.zero_stage >= 2 ? zero : 1) +
                      bytes / (settings.zero_stage >= 3 ? zero : 1) + kept * activations +
                      (settings.recompute ? sums.saved_and_workspace.of(begin, end)
                                          : sums.workspace.of(begin, end)) +
                      sums.crossing[begin] + sums.crossing[end];
  if (settings.zero_stage == 3 && replicas > 1) {
    cost.memory_bytes += 2 * sums.largest_parameters.of(begin, end);
  }
  cost.lacking_bytes = place.capacity == kUnlimitedBytes ? 0 : cost.memory_bytes - place.capacity;
  return cost;
}

const StepModel::Crossing& StepModel::crossing_of(const StepSettings& settings, int used,
                                                  int replicas, int next_replicas) const {
  const std::array key{arrangement(settings), used, replicas, next_replicas};
  const auto found = crossings_.find(key);
  if (found != crossings_.end()) return found->second;
  return crossings_[key] = find_crossing(settings, used, replicas, next_replicas);
}

// Micro-batch i goes from replica i modulo `replicas` to replica i modulo `next_replicas`. So among
// lcm(replicas, next_replicas) micro-batches, two ranks exchange one if their replica numbers are
// equal modulo the greatest common divisor, otherwise none.
StepModel::Crossing StepModel::find_crossing(const StepSettings& settings, int used, int replicas,
                                             int next_replicas) const {
  const auto& cluster = problem_.cluster;
  const int classes = std::gcd(replicas, next_replicas);
  using Counts = std::map<std::pair<int, int>, int>;  // of ranks, by class and host
  Counts senders, receivers;
  std::map<std::array<int, 3>, int> in_groups;  // receivers, by class, host and group
  for (int i = 0; i < next_replicas; ++i) {
    const auto& to = cluster.devices_of(rank_of(settings, used + replicas, next_replicas, i));
    ++receivers[{i % classes, to.host}];
    ++in_groups[{i % classes, to.host, to.group}];
  }
  Crossing crossing;
  const auto has = [&](layout::Level level) -> bool& {
    return crossing.has_level[static_cast<size_t>(level)];
  };
  const int receivers_of_class = next_replicas / classes, senders_of_class = replicas / classes;
  std::map<int, int> leaving, arriving;  // by host
  for (int i = 0; i < replicas; ++i) {
    const auto& from = cluster.devices_of(rank_of(settings, used, replicas, i));
    ++senders[{i % classes, from.host}];
    const auto on_host = receivers.find({i % classes, from.host});
    const int near = on_host == receivers.end() ? 0 : on_host->second;
    const auto in_group = in_groups.find({i % classes, from.host, from.group});
    const int nearest = in_group == in_groups.end() ? 0 : in_group->second;
    has(layout::Level::group) |= nearest > 0;
    has(layout::Level::host) |= near > nearest;
    leaving[from.host] += receivers_of_class - near;
  }
  for (const auto& [key, count] : receivers) {
    const auto near = senders.find(key);
    arriving[key.second] += count * (senders_of_class - (near == senders.end() ? 0 : near->second));
  }
  int most = 0;
  for (const auto* messages : {&leaving, &arriving}) {
    for (const auto& [host, count] : *messages) most = std::max(most, count);
  }
  has(layout::Level::network) = most > 0;
  crossing.port_share = static_cast<double>(most) / std::lcm(replicas, next_replicas);
  return crossing;
}

StepModel::Cost StepModel::boundary(const StepSettings& settings, size_t end, int used,
                                    int replicas, int next_replicas) const {
  const double bytes = sums_[settings.profile].crossing[end] / problem_.compression_ratio;
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
  return {.latency = 2 * slowest, .steady = (micro_batches_[settings.profile] - 1) * port};
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
  const auto& sums = sums_[settings.profile];
  const auto rest = [&](const std::vector<double>& sum) { return sum.back() - sum[begin]; };
  const double again = settings.recompute ? rest(sums.forward) : 0;
  const double once = rest(sums.forward) + again + rest(sums.input) + rest(sums.weight);
  const double waits = settings.family == StepFamily::zero_bubble
                           ? std::max(0.0, once - 2 * rest(sums.weight))
                           : once;
  const double rounds = static_cast<double>(micro_batches_[settings.profile]) / devices - 1;
  return {.latency = waits * sums.least_slowness,
          .steady = std::max(0.0, rounds) * once * sums.least_slowness};
}

double StepModel::lower_bound() const {
  double least = kUnlimitedBytes;
  for (size_t i = 0; i < problem_.profiles.size(); ++i) {
    if (micro_batches_[i] == 0) continue;
    const auto& sums = sums_[i];
    const double once = sums.forward.back() + sums.input.back() + sums.weight.back();
    least =
        std::min(least, once * sums.least_slowness * micro_batches_[i] / problem_.cluster.ranks());
  }
  return least;
}

}  // namespace troika::plan
