// The ranks of stages: their devices, and the links within a stage and between stages.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "troika/plan/lateness.h"
#include "troika/plan/search/step_model.h"

namespace troika::plan {

using layout::Link;

const layout::Devices& StepModel::device(int rank) const {
  return problem_.cluster.devices[rows_[static_cast<size_t>(rank)]];
}

// The tensor axis is the innermost, inside the context axis.
int StepModel::rank_of(const StepSettings& settings, int used, int replicas, int replica) const {
  const int group = settings.family == StepFamily::pipeline_rows
                        ? replica * (settings.groups() / replicas) + used / replicas
                        : used + replica;
  return group * settings.axes.ranks();
}

Link StepModel::link(size_t profile, layout::Level level) const {
  const auto& cluster = problem_.cluster;
  const auto& measured = problem_.profiles[profile];
  const auto known = [](const Link& one, const Link& other) {
    return one.bandwidth > 0 || one.latency > 0 ? one : other;
  };
  return level == layout::Level::group ? known(cluster.group, measured.group.link)
                                       : known(cluster.host, measured.host.link);
}

std::array<int, 3> StepModel::arrangement(const StepSettings& settings) {
  return {settings.family == StepFamily::pipeline_rows ? settings.groups() : 0,
          settings.axes.tensor, settings.axes.context};
}

const StepModel::Place& StepModel::place_of(const StepSettings& settings, int used,
                                            int replicas) const {
  const auto [rows, tensor, context] = arrangement(settings);
  // With sequence parallelism, other times hide other messages.
  const bool differs = settings.axes.sequence && !shard_of(settings).sums.exposed.sums.empty();
  const std::array key{static_cast<int>(settings.profile),
                       rows,
                       differs ? -tensor : tensor,
                       context,
                       used,
                       replicas};
  const auto found = places_.find(key);
  if (found != places_.end()) return found->second;
  return places_[key] = find_place(settings, used, replicas);
}

double StepModel::lateness_of(int ranks) const {
  const auto [found, is_new] = lateness_.try_emplace(ranks, 0);
  if (is_new) found->second = expected_maximum(ranks);
  return found->second;
}

StepModel::Place StepModel::find_place(const StepSettings& settings, int used, int replicas) const {
  Place place{.slowness = 0,
              .capacity = problem_.memory_bytes.value_or(std::numeric_limits<double>::infinity())};
  const auto& slowness = shard_of(settings).sums.slowness;
  const int ranks = settings.axes.ranks(), tensor = settings.axes.tensor;
  std::map<int, int> replicas_of_hosts;
  Link ring;
  // The groups that average: one for each place on the tensor axis.
  std::set<std::array<int, 3>> groups;
  for (int i = 0; i < replicas; ++i) {
    const int first = rank_of(settings, used, replicas, i);
    for (int on_axis = 0; on_axis < ranks; ++on_axis) {
      const auto& own = device(first + on_axis);
      place.slowness = std::max(place.slowness, slowness[static_cast<size_t>(first + on_axis)]);
      if (own.memory_bytes > 0) {
        place.capacity = std::min(place.capacity, static_cast<double>(own.memory_bytes));
      }
      groups.insert({on_axis % tensor, own.host, own.group});
    }
    ++replicas_of_hosts[device(first).host];
    place.axis = layout::slower(place.axis, tensor_link(settings, first));
    ring = layout::slower(ring, context_link(settings, first));
  }
  place.lateness = lateness_of(replicas);
  place.axis_lateness = lateness_of(ranks);
  place.hosts = static_cast<int>(replicas_of_hosts.size());
  for (const auto& [host, count] : replicas_of_hosts) {
    place.fullest = std::max(place.fullest, settings.copies(count));
  }
  place.exposed =
      exposed_of(shard_of(settings).profile, settings.axes, place.axis, ring, place.slowness);
  const bool in_groups = static_cast<int>(groups.size()) == place.hosts * tensor;
  place.inside = link(settings.profile, in_groups ? layout::Level::group : layout::Level::host);
  const auto& links = links_[settings.profile];
  place.between = links.network(rank_of(settings, used, replicas, 0));
  for (int i = 1; i < replicas; ++i) {
    place.between =
        layout::slower(place.between, links.network(rank_of(settings, used, replicas, i)));
  }
  place.share = tensor;
  if (settings.family == StepFamily::pipeline_rows) {
    // All stages average at the same time.
    int on_host = 0;
    const int host = device(rank_of(settings, used, replicas, 0)).host;
    for (int rank = 0; rank < settings.devices; ++rank)
      on_host += device(rank).host == host ? 1 : 0;
    place.share = static_cast<double>(on_host) / settings.copies(replicas_of_hosts[host]);
  }
  return place;
}

const StepModel::Crossing& StepModel::crossing_of(const StepSettings& settings, int used,
                                                  int replicas, int next_replicas) const {
  const auto [rows, tensor, context] = arrangement(settings);
  const std::array key{rows, tensor, context, used, replicas, next_replicas};
  const auto found = crossings_.find(key);
  if (found != crossings_.end()) return found->second;
  return crossings_[key] = find_crossing(settings, used, replicas, next_replicas);
}

// Micro-batch i goes from replica i modulo `replicas` to replica i modulo `next_replicas`. So among
// lcm(replicas, next_replicas) micro-batches, two ranks exchange one if their replica numbers are
// equal modulo the greatest common divisor, otherwise none.
StepModel::Crossing StepModel::find_crossing(const StepSettings& settings, int used, int replicas,
                                             int next_replicas) const {
  const int classes = std::gcd(replicas, next_replicas), ranks = settings.axes.ranks();
  using Counts = std::map<std::pair<int, int>, int>;  // of ranks, by class and host
  Counts senders, receivers;
  // Receivers, by class, place in the group that computes blocks together, host and group.
  std::map<std::array<int, 4>, int> in_groups;
  std::map<int, int> first_ranks;  // by host
  for (int i = 0; i < next_replicas; ++i) {
    const int to = rank_of(settings, used + replicas, next_replicas, i);
    ++receivers[{i % classes, device(to).host}];
    first_ranks.try_emplace(device(to).host, to);
    for (int on_axis = 0; on_axis < ranks; ++on_axis) {
      const auto& own = device(to + on_axis);
      ++in_groups[{i % classes, on_axis, own.host, own.group}];
    }
  }
  Crossing crossing;
  const auto has = [&](layout::Level level) -> bool& {
    return crossing.has_level[static_cast<size_t>(level)];
  };
  const int receivers_of_class = next_replicas / classes, senders_of_class = replicas / classes;
  std::map<int, int> leaving, arriving;  // by host
  for (int i = 0; i < replicas; ++i) {
    const int from = rank_of(settings, used, replicas, i);
    const int host = device(from).host;
    ++senders[{i % classes, host}];
    first_ranks.try_emplace(host, from);
    const auto on_host = receivers.find({i % classes, host});
    const int near = on_host == receivers.end() ? 0 : on_host->second;
    for (int on_axis = 0; on_axis < ranks; ++on_axis) {
      const auto in_group =
          in_groups.find({i % classes, on_axis, host, device(from + on_axis).group});
      const int nearest = in_group == in_groups.end() ? 0 : in_group->second;
      has(layout::Level::group) |= nearest > 0;
      has(layout::Level::host) |= near > nearest;
    }
    leaving[host] += receivers_of_class - near;
  }
  for (const auto& [key, count] : receivers) {
    const auto near = senders.find(key);
    arriving[key.second] += count * (senders_of_class - (near == senders.end() ? 0 : near->second));
  }
  const auto& cluster = problem_.cluster;
  std::map<double, std::pair<int, int>> most;  // messages and host, by bandwidth
  for (const auto* messages : {&leaving, &arriving}) {
    for (const auto& [host, count] : *messages) {
      const auto& name = cluster.hosts[static_cast<size_t>(host)];
      auto& busiest = most[cluster.network_of(name).bandwidth];
      busiest = std::max(busiest, std::pair(count, host));
    }
  }
  for (const auto& [bandwidth, busiest] : most) {
    const auto& [count, host] = busiest;
    if (count == 0) continue;
    // Each rank that computes the stage sends its message.
    crossing.ports.push_back(
        {.rank = first_ranks.at(host),
         .share = static_cast<double>(count) * ranks / std::lcm(replicas, next_replicas)});
  }
  return crossing;
}

bool StepModel::has_even_stages(const StepSettings& settings) const {
  const auto family = settings.family;
  if (family == StepFamily::one_stage) return false;
  if (settings.axes.ranks() > 1) return true;  // as runs need them
  // Uneven stages of 2BW may have more micro-batches in flight than a step has.
  const bool is_2bw =
      family == StepFamily::no_flushes && problem_.weights == layout::StageWeights::double_buffered;
  const bool has_rows = family == StepFamily::pipeline_rows || family == StepFamily::zero_bubble ||
                        family == StepFamily::gpipe;
  return is_2bw || has_rows || (problem_.allows && !problem_.allows(settings, true));
}

}  // namespace troika::plan
