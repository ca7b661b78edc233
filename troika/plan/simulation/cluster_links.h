// The ports of a cluster's devices, groups and hosts, which messages share.
#pragma once

#include <string>
#include <vector>

#include "troika/layout/cluster.h"
#include "troika/layout/profile.h"
#include "troika/plan/simulation/shared_links.h"

namespace troika::plan {

// Rank r is device r of the cluster. Each spare host has one device after those. A message between
// two devices of a group crosses a port of each device; between two groups of a host, a port of
// each group; between two hosts, a port of each host. A port is full duplex: it has the bandwidth
// of its level (Cluster::group, host, network_of()) in each direction. Ports are connected by a
// switch of full bisection bandwidth. An unknown bandwidth (0) counts as unlimited.
class ClusterLinks {
 public:
  // The links that a message crosses.
  struct Path {
    double latency = 0;              // seconds
    std::vector<LinkUse> uses = {};  // empty for a message to oneself
  };

  explicit ClusterLinks(const layout::Cluster& cluster);

  // The number of devices, with those of spare hosts.
  int ranks() const { return static_cast<int>(devices_.size()); }
  // Throws CheckError for a rank outside of the cluster.
  Path path(int from, int to) const;
  // Returns the number of the host of a rank, and the link of this host to the network.
  int host(int rank) const { return device(rank).host; }
  layout::Link network(int rank) const {
    return {cluster_.network.latency, host_bandwidths_[static_cast<size_t>(host(rank))]};
  }
  // Whether two ranks are on one host, but in different groups.
  bool crosses_groups(int one, int other) const;

  // Return for each link its bytes per second, and its name, such as "host node-1, network, out".
  std::vector<double> bandwidths() const;
  std::vector<std::string> names() const;
  // Returns the links that messages of this rank use: for each level, outward and inward.
  std::vector<int> links_of(int rank) const;

  const layout::Cluster& cluster() const { return cluster_; }

 private:
  struct Device {
    int host = 0;
    int group = 0;  // counted over all hosts
  };
  // The outward link of a port; the inward link follows it.
  int device_port(int rank) const { return 2 * rank; }
  int group_port(int group) const { return 2 * (ranks() + group); }
  int host_port(int host) const { return 2 * (ranks() + static_cast<int>(groups_.size()) + host); }
  const Device& device(int rank) const;

  const layout::Cluster cluster_;
  std::vector<std::string> hosts_;  // those of the cluster, and then spare hosts
  std::vector<double> host_bandwidths_;
  std::vector<Device> devices_;
  std::vector<std::string> groups_;  // names
};

// Returns the cluster with the profile's links at levels whose latency and bandwidth are unknown.
layout::Cluster with_measured_links(layout::Cluster cluster, const layout::Profile& profile);

}  // namespace troika::plan
