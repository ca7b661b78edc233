#include "troika/plan/search/machine_levels.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "troika/plan/errors/refuse.h"

namespace troika::plan {

namespace {

[[noreturn]] void refuse_cluster(std::string_view name, std::string_view what, std::string got,
                                 std::string expected) {
  refuse(fmt::format("{} of {}", what, name), std::move(got), std::move(expected),
         "or a plan by --machines");
}

// Returns the number that all entries have.
template <typename Key>
int common(const std::map<Key, int>& counts, const char* what, std::string_view name) {
  for (const auto& [key, count] : counts) {
    if (count == counts.begin()->second) continue;
    refuse_cluster(name, what, fmt::format("{} and {}", counts.begin()->second, count),
                   "equally many of each");
  }
  return counts.begin()->second;
}

using GroupCounts = std::map<std::pair<int, int>, int>;  // devices, by host and group

GroupCounts devices_of_groups(const layout::Cluster& cluster) {
  GroupCounts devices;
  for (const auto& row : cluster.devices) devices[{row.host, row.group}] += row.count;
  return devices;
}

std::map<int, int> groups_of_hosts(const GroupCounts& devices) {
  std::map<int, int> groups;
  for (const auto& [place, count] : devices) ++groups[place.first];
  return groups;
}

void require_bandwidth(std::string_view name, const char* link, double bandwidth) {
  if (bandwidth > 0) return;
  refuse_cluster(name, fmt::format("{}.bandwidth", link), "none", "bytes per second > 0");
}

bool has_several(const auto& counts) {
  return std::ranges::any_of(counts, [](const auto& entry) { return entry.second > 1; });
}

}  // namespace

void require_links(const layout::Cluster& cluster, std::string_view name) {
  const auto devices = devices_of_groups(cluster);
  const auto groups = groups_of_hosts(devices);
  if (has_several(devices)) require_bandwidth(name, "links.group", cluster.group.bandwidth);
  if (has_several(groups)) require_bandwidth(name, "links.host", cluster.host.bandwidth);
  if (groups.size() == 1 && cluster.spares.empty()) return;
  for (const auto* hosts : {&cluster.hosts, &cluster.spares}) {
    for (const auto& host : *hosts) {
      require_bandwidth(name, "links.network", cluster.network_of(host).bandwidth);
    }
  }
}

std::vector<MachineLevel> machine_levels(const layout::Cluster& cluster, std::string_view name) {
  const auto devices = devices_of_groups(cluster);
  const auto groups = groups_of_hosts(devices);
  const double network = cluster.network_of(cluster.hosts.front()).bandwidth;
  for (const auto& host : cluster.hosts) {
    const double own = cluster.network_of(host).bandwidth;
    if (own == network) continue;
    refuse_cluster(name, "bandwidths of hosts", fmt::format("{:g} and {:g}", network, own),
                   "equal ones");
  }
  struct Counted {
    const char* link;
    MachineLevel level;
  };
  const Counted counted[]{
      {"links.group", {common(devices, "devices of a group", name), cluster.group.bandwidth}},
      {"links.host", {common(groups, "groups of a host", name), cluster.host.bandwidth}},
      {"links.network", {static_cast<int>(groups.size()), network}}};
  std::vector<MachineLevel> levels;
  for (const auto& [link, level] : counted) {
    if (level.machines == 1) continue;
    require_bandwidth(name, link, level.bandwidth);
    levels.push_back(level);
  }
  if (levels.empty()) levels.push_back({1, 1});
  return levels;
}

}  // namespace troika::plan
