#include "troika/plan/simulation/cluster_links.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "troika/base/error.h"

namespace troika::plan {

ClusterLinks::ClusterLinks(const layout::Cluster& cluster)
    : cluster_(cluster), hosts_(cluster.hosts) {
  std::map<std::pair<int, int>, int> numbers;
  for (const auto& row : cluster.devices) {
    const auto [group, is_new] =
        numbers.try_emplace({row.host, row.group}, static_cast<int>(groups_.size()));
    if (is_new) {
      groups_.push_back(
          fmt::format("group {} of {}", row.group, cluster.hosts[static_cast<size_t>(row.host)]));
    }
    devices_.insert(devices_.end(), static_cast<size_t>(row.count), {row.host, group->second});
  }
  for (const auto& spare : cluster.spares) {
    devices_.push_back({static_cast<int>(hosts_.size()), static_cast<int>(groups_.size())});
    groups_.push_back("group 0 of " + spare);
    hosts_.push_back(spare);
  }
  for (const auto& host : hosts_) host_bandwidths_.push_back(cluster.network_of(host).bandwidth);
}

const ClusterLinks::Device& ClusterLinks::device(int rank) const {
  TROIKA_CHECK(rank >= 0 && rank < ranks(), fmt::format("rank {} of {}", rank, ranks()));
  return devices_[static_cast<size_t>(rank)];
}

ClusterLinks::Path ClusterLinks::path(int from, int to) const {
  if (from == to) return {};
  const auto &a = device(from), &b = device(to);
  if (a.host != b.host) {
    return {cluster_.network.latency, {{host_port(a.host), 1}, {host_port(b.host) + 1, 1}}};
  }
  if (a.group != b.group) {
    return {cluster_.host.latency, {{group_port(a.group), 1}, {group_port(b.group) + 1, 1}}};
  }
  return {cluster_.group.latency, {{device_port(from), 1}, {device_port(to) + 1, 1}}};
}

bool ClusterLinks::crosses_groups(int one, int other) const {
  return device(one).host == device(other).host && device(one).group != device(other).group;
}

std::vector<double> ClusterLinks::bandwidths() const {
  std::vector<double> all;
  const auto add = [&](size_t ports, double bandwidth) {
    all.insert(all.end(), 2 * ports, bandwidth > 0 ? bandwidth : kUnlimited);
  };
  add(devices_.size(), cluster_.group.bandwidth);
  add(groups_.size(), cluster_.host.bandwidth);
  for (const double bandwidth : host_bandwidths_) add(1, bandwidth);
  return all;
}

std::vector<std::string> ClusterLinks::names() const {
  std::vector<std::string> all;
  const auto add = [&](const std::string& port, const char* level) {
    all.push_back(fmt::format("{}, {}, out", port, level));
    all.push_back(fmt::format("{}, {}, in", port, level));
  };
  for (int rank = 0; rank < ranks(); ++rank) add(fmt::format("device of rank {}", rank), "group");
  for (const auto& group : groups_) add(group, "host");
  for (const auto& host : hosts_) add("host " + host, "network");
  return all;
}

std::vector<int> ClusterLinks::links_of(int rank) const {
  std::vector<int> links;
  const auto& own = device(rank);
  for (const int port : {device_port(rank), group_port(own.group), host_port(own.host)}) {
    links.push_back(port);
    links.push_back(port + 1);
  }
  return links;
}

layout::Cluster with_measured_links(layout::Cluster cluster, const layout::Profile& profile) {
  const auto take = [](layout::Link& link, const layout::MeasuredLink& measured) {
    if (link == layout::Link{}) link = measured.link;
  };
  take(cluster.group, profile.group);
  take(cluster.host, profile.host);
  take(cluster.network, profile.network);
  return cluster;
}

}  // namespace troika::plan
