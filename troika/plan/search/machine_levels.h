// Describes a cluster by levels of equal machines, as the published cost models require.
#pragma once

#include <string_view>
#include <vector>

#include "troika/layout/cluster.h"
#include "troika/plan/search/published.h"

namespace troika::plan {

// Returns up to three levels, innermost first: the devices of a group, the groups of a host, and
// the hosts, with the bandwidths of the cluster's links. Omits levels of one machine, but returns
// at least one level. `name` is the cluster's file, for errors. Throws Error(usage) for a cluster
// whose hosts or groups differ, and for a link without a bandwidth.
std::vector<MachineLevel> machine_levels(const layout::Cluster& cluster, std::string_view name);

// Throws Error(usage) if a link between devices of the cluster has no bandwidth.
void require_links(const layout::Cluster& cluster, std::string_view name);

}  // namespace troika::plan
