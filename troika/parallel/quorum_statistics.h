// Numbers about a run whose replicas may be lost.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "troika/quorum/member.h"

namespace troika::parallel {

// Returns samples_begun and samples_counted of all replicas since the run began, and the numbers of
// replicas, now and lost, for a row of the log.
std::vector<std::pair<std::string, double>> quorum_statistics(quorum::Member& member);

}  // namespace troika::parallel
