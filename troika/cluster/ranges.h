// Sets of ranks as they stand in a frame: "0-1,4-4".
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace troika::cluster {

// `ranks` ascend.
std::string to_ranges(const std::vector<int>& ranks);
// Calls `take` for each rank. Throws Error(cluster, failure) for text that to_ranges() did not make
// of ranks below `world_size`.
void for_each_rank(const std::string& ranges, int world_size, const std::function<void(int)>& take);

}  // namespace troika::cluster
