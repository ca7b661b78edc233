// Schedules that repeat a building block, with two chunks per rank in a V: Qi et al. 2024, arXiv
// 2405.15362.
#pragma once

#include <array>
#include <vector>

#include "troika/layout/schedules/orders.h"

namespace troika::layout {

// A micro-batch's passes on a rank: forward of chunk 0 and of chunk 1, input part of the backward
// pass of chunk 1 and of chunk 0. Each takes one time slot.
enum class VPass { forward_0, forward_1, backward_1, backward_0 };
inline constexpr size_t kVPasses = 4;
// The slots between consecutive micro-batches: four passes and two weight parts.
inline constexpr int kVPeriod = 6;

// The slots of micro-batch 0 on each rank, by VPass. A rank's slots are distinct modulo kVPeriod,
// and each pass comes after its dependencies.
using VBlock = std::vector<std::array<int, kVPasses>>;

// Repeats the block for all micro-batches and fills free slots with weight parts. Then moves passes
// at the beginning and at the end earlier, if that does not raise the maximum over ranks of the
// number of kept activations.
Schedule repeat_block(const VBlock& block, const PipelineShape& shape);

}  // namespace troika::layout
