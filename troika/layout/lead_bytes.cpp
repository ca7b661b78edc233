#include "troika/layout/lead_bytes.h"

#include <algorithm>
#include <cmath>

namespace troika::layout {

int64_t lead_bytes(double share, int64_t partition_bytes) {
  constexpr double kPartitions = 8;  // at all servers
  const auto partitions = std::max(1.0, std::ceil(kPartitions * share));
  return static_cast<int64_t>(partitions) * partition_bytes;
}

}  // namespace troika::layout
