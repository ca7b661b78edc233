// The parts of a model's blocks that a tensor axis divides, for a profile.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/layout/profile.h"
#include "troika/nn/precision.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Sets ProfiledBlock::tensor of the blocks of the model that the options name, by the table of
// parallel::split_table() and a micro-batch of `samples`. Nothing is timed: runs the passes of a
// whole rank and of one rank of the smallest tensor axis on tensors without memory, and counts
// FLOPs, bytes and sums. A share is linear in 1/t by these two. A time is that of FLOPs and of the
// saved bytes that operators move. Sets nothing for a model without a table, or with units that no
// number of ranks divides. Ranks that would share a head, and sums of a number a row, are left out.
//
// Counts on rank 0 alone; the same on all ranks. Needs compat::count_tensor_memory(). Collective;
// blocks.
void add_tensor_cuts(std::vector<layout::ProfiledBlock>& blocks, const TrainOptions& options,
                     const data::Dataset& dataset, const nn::NumericPrecision& precision,
                     int64_t samples, const comm::Group& group);

}  // namespace troika::train
