#include "troika/train/profile/block_memory.h"

#include <algorithm>

namespace troika::train {

std::vector<BlockMemory> memory_of_blocks(const std::vector<PassPart>& parts, size_t blocks) {
  std::vector<BlockMemory> result(blocks);
  std::vector<double> peak(blocks, 0), after(blocks, 0);
  size_t at = 0;  // the block that runs
  bool has_begun = false, is_backward = false;
  double before = 0;
  for (const auto& part : parts) {
    const bool is_block = part.until.kind == PassEvent::Kind::block;
    if (has_begun || is_backward) peak[at] = std::max(peak[at], part.peak);
    if (is_backward) {
      if (is_block) at = part.until.index;
      continue;
    }
    if (has_begun) {
      after[at] = part.live;
      result[at].saved = std::max(0.0, part.live - before);
    }
    before = part.live;
    if (is_block) at = part.until.index;
    has_begun = true;
    is_backward = part.until.kind == PassEvent::Kind::forward_done;
  }
  for (size_t i = 0; i < blocks; ++i) result[i].workspace = std::max(0.0, peak[i] - after[i]);
  return result;
}

}  // namespace troika::train
