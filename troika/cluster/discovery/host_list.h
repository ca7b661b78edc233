// Slurm's compact notations: host lists `n[1-3,07],login` and counts per node `4(x2),3`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika::cluster {

// Returns the hosts of a list, in order. A host may contain several [ranges], which are combined;
// the last one varies fastest. `a-b` counts up, zero-padded to the width of `a`. Throws
// Error(cluster, usage) for unbalanced or nested brackets, b < a, and empty parts. Grammar: Slurm's
// scontrol(1), "show hostnames".
std::vector<std::string> expand_hosts(std::string_view list);

// Parses the format of SLURM_TASKS_PER_NODE: "4(x2),3" -> {4, 4, 3}. Throws Error(cluster, usage).
std::vector<int> expand_counts(std::string_view text);

}  // namespace troika::cluster
