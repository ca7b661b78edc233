// The links between the devices of a cluster, device by device.
#pragma once

#include "troika/layout/cluster.h"

namespace troika::layout {

inline Level level_between(const Cluster& cluster, int one, int other) {
  const auto &a = cluster.devices_of(one), &b = cluster.devices_of(other);
  if (a.host != b.host) return Level::network;
  return a.group == b.group ? Level::group : Level::host;
}

inline const Link& link_between(const Cluster& cluster, int one, int other) {
  switch (level_between(cluster, one, other)) {
    case Level::group:
      return cluster.group;
    case Level::host:
      return cluster.host;
    default:
      return cluster.network;
  }
}

}  // namespace troika::layout
