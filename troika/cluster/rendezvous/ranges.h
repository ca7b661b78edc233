// Text format for sets of ranks in frames: "0-1,4-4".
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace troika::cluster {

// Returns the ranks as ranges, for example "0-3,7-7". `ranks` must be ascending.
std::string to_ranges(const std::vector<int>& ranks);
// Calls `take` for each rank. Throws Error(cluster, failure) unless to_ranges() made the text, with
// ranks below `world_size`.
void for_each_rank(const std::string& ranges, int world_size, const std::function<void(int)>& take);

}  // namespace troika::cluster
