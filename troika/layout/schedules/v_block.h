// Schedules with two chunks a rank in a V that repeat a building block: Qi et al. 2024, arXiv
// 2405.15362.
#pragma once

#include <array>
#include <vector>

#include "troika/layout/schedules/orders.h"

namespace troika::layout {

// Passes of a micro-batch on a rank: forward of chunk 0 and of chunk 1, input part of the backward
// pass of chunk 1 and of chunk 0. Each takes a slot of time.
enum class VPass { forward_0, forward_1, backward_1, backward_0 };
inline constexpr size_t kVPasses = 4;
// Micro-batches follow each other after so many slots: four passes, and two weight parts.
inline constexpr int kVPeriod = 6;

// Slots of micro-batch 0 on each rank, by VPass. Those of a rank differ modulo kVPeriod, and each
// pass comes after what it needs.
using VBlock = std::vector<std::array<int, kVPasses>>;

// Repeats the block for all micro-batches, fills free slots with weight parts, and moves passes
// of the beginning and of the end earlier where no rank then keeps more activations than the rank
// that keeps most did before.
Schedule repeat_block(const VBlock& block, const PipelineShape& shape);

}  // namespace troika::layout
