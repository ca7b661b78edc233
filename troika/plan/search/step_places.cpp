// The ranks of stages: their devices, and the links within a stage and between stages.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "troika/plan/lateness.h"
#include "troika/plan/search/step_model.h"

namespace troika::plan {

using layout::Link;

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
  Place place{.slowness = 0, .capacity = std::numeric_limits<double>::infinity()};
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
  place.lateness = expected_maximum(replicas);
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

bool StepModel::has_even_stages(const StepSettings& settings) const {
  const auto family = settings.family;
  if (family == StepFamily::one_stage) return false;
  // Uneven stages of 2BW may have more micro-batches in flight than a step has.
  const bool is_2bw =
      family == StepFamily::no_flushes && problem_.weights == layout::StageWeights::double_buffered;
  const bool has_rows = family == StepFamily::pipeline_rows || family == StepFamily::zero_bubble;
  return is_2bw || has_rows || (problem_.allows && !problem_.allows(settings, true));
}

}  // namespace troika::plan
