// Slurm's two short notations: host lists `n[1-3,07],login` and counts per node `4(x2),3`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika::cluster {

// The hosts of a list, in order. A host is text with any number of [ranges] in it, several of which
// multiply (the last varies fastest); `a-b` counts up with at least as many digits as `a` has.
// Throws Error(cluster, usage) for unbalanced or nested brackets, b < a, and empty parts.
// Grammar: Slurm's scontrol(1), "show hostnames".
std::vector<std::string> expand_hosts(std::string_view list);

// A short list that expand_hosts turns into exactly these hosts, in this order. Neighbours that
// differ in their last number only share a bracket.
std::string compress_hosts(const std::vector<std::string>& hosts);

// "4(x2),3" -> {4, 4, 3}, the form of SLURM_TASKS_PER_NODE. Throws Error(cluster, usage).
std::vector<int> expand_counts(std::string_view text);

}  // namespace troika::cluster
