// A cluster as levels of equal machines, as the published cost models see it.
#pragma once

#include <string_view>
#include <vector>

#include "troika/layout/cluster.h"
#include "troika/plan/search/published.h"

namespace troika::plan {

// Returns the devices of a group, the groups of a host and the hosts, without levels of one machine
// (but at least one level), with the bandwidths of the cluster's links. `name` is the cluster's
// file, for errors. Throws Error(usage) for a cluster whose hosts or groups differ, and for a link
// without a bandwidth.
std::vector<MachineLevel> machine_levels(const layout::Cluster& cluster, std::string_view name);

}  // namespace troika::plan
