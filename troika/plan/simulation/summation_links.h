// How simulated summation servers share gradients (docs/byteps.md).
#pragma once

#include <string>
#include <vector>

#include "troika/layout/summation.h"
#include "troika/plan/simulation/cluster_links.h"

namespace troika::plan {

// Returns those of the ranks that exchange gradients with servers if hosts sum first: the first one
// of each host, ascending; all if they are on one host.
std::vector<int> summing_ranks(const std::vector<int>& ranks, const ClusterLinks& links);

// Returns the bandwidths that a run measures at its start, in bytes per second: those of the links
// of spare hosts' devices, then those of workers'. All workers on other hosts send to a server at
// once, and the server has everything when the slowest of them has sent it. Workers of one host
// have equal parts of its link. If all workers are on one host, they count as hosts of their own,
// whose links are those between the workers. kUnlimited for links of unknown bandwidth.
std::vector<double> measured_rates(const std::vector<int>& workers, const std::vector<int>& spares,
                                   const ClusterLinks& links);

// Returns the split of a run with this SummationExchange::links among servers on these spare
// devices and beside these workers. If no bandwidth is known that a run would measure, the links
// are equal. Throws Error(usage) if only some are, and the errors of layout::read_links().
layout::SummationSplit summation_split(const std::string& asked, const std::vector<int>& workers,
                                       const std::vector<int>& spares, const ClusterLinks& links);

}  // namespace troika::plan
