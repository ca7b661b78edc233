#include "troika/plan/unsharded_bytes.h"

#include <algorithm>
#include <numeric>

namespace troika::plan {

double unsharded_bytes(const ShardedBlocks& blocks) {
  if (blocks.zero_stage < 2) return 0;
  const auto& bytes = blocks.parameter_bytes;
  const double all = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  const double open = std::min(all, 2 * blocks.bucket_bytes);
  if (blocks.zero_stage == 2) return blocks.accumulates ? all : open;
  double most = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const double after = i > 0 ? bytes[i - 1] : 0;  // in the backward pass
    const double before = i + 1 < bytes.size() ? bytes[i + 1] : 0;
    const double gradients = blocks.accumulates ? all : std::min(open, bytes[i] + before);
    most = std::max(most, bytes[i] + after + gradients);
  }
  return most;
}

}  // namespace troika::plan
