// The parts of a model's blocks that a context axis divides, for a profile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/layout/profile.h"
#include "troika/nn/precision.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Sets ProfiledBlock::context of the blocks of the model that the options name, for a micro-batch
// of `samples`. `attention` is model.attn_implementation of a run on the axis; the options have
// that of one rank, as tuned_model() chose it. Nothing is timed: runs the passes of a whole rank
// and of one of two ranks of a context axis on tensors without memory, and counts FLOPs, bytes and
// the tensors of attention. A share is linear in 1/c by these two. Sets nothing for a model that
// cannot be cut by tokens, or whose tokens two ranks cannot divide.
//
// Counts on rank 0 alone; the same on all ranks. Needs compat::count_tensor_memory(). Collective;
// blocks.
void add_context_cuts(std::vector<layout::ProfiledBlock>& blocks, const TrainOptions& options,
                      const std::string& attention, const data::Dataset& dataset,
                      const nn::NumericPrecision& precision, int64_t samples,
                      const comm::Group& group);

}  // namespace troika::train
