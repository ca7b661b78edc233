#include "troika/plan/search/machine_levels.h"

#include <fmt/format.h>

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

}  // namespace

std::vector<MachineLevel> machine_levels(const layout::Cluster& cluster, std::string_view name) {
  std::map<std::pair<int, int>, int> devices;  // by host and group
  for (const auto& row : cluster.devices) devices[{row.host, row.group}] += row.count;
  std::map<int, int> groups;  // by host
  for (const auto& [place, count] : devices) ++groups[place.first];
  struct Counted {
    const char* link;
    MachineLevel level;
  };
  const Counted counted[]{
      {"links.group", {common(devices, "devices of a group", name), cluster.group.bandwidth}},
      {"links.host", {common(groups, "groups of a host", name), cluster.host.bandwidth}},
      {"links.network", {static_cast<int>(groups.size()), cluster.network.bandwidth}}};
  std::vector<MachineLevel> levels;
  for (const auto& [link, level] : counted) {
    if (level.machines == 1) continue;
    if (level.bandwidth <= 0) {
      refuse_cluster(name, fmt::format("{}.bandwidth", link), "none", "bytes per second > 0");
    }
    levels.push_back(level);
  }
  if (levels.empty()) levels.push_back({1, 1});
  return levels;
}

}  // namespace troika::plan
