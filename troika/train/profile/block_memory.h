// The memory of a model's blocks, from the memory of a pass over time.
#pragma once

#include <cstddef>
#include <vector>

#include "troika/train/memory/pass_memory.h"

namespace troika::train {

struct BlockMemory {
  double saved = 0;  // bytes kept from the block's forward pass until its backward pass
  // The most bytes in a pass of the block beyond those saved by it and all earlier blocks.
  double workspace = 0;
};

// `parts` are those of a pass without recomputation, of a model with this number of blocks.
// Gradients of parameters count as workspace until they are accumulated, and not after that.
std::vector<BlockMemory> memory_of_blocks(const std::vector<PassPart>& parts, size_t blocks);

}  // namespace troika::train
