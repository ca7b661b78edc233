// The bytes of a model's blocks for a profile, counted on tensors without memory.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/layout/profile.h"
#include "troika/nn/precision.h"
#include "troika/train/options/options.h"
#include "troika/train/task/task.h"

namespace troika::train {

// Returns the blocks of the model that the options name, with their bytes for a micro-batch of
// `samples`, and without times. Counts on rank 0 alone, because ranks may be threads of one
// process, which count the same bytes. The same on all ranks. Collective; blocks.
std::vector<layout::ProfiledBlock> counted_blocks(const TrainOptions& options,
                                                  const data::Dataset& dataset,
                                                  const nn::NumericPrecision& precision,
                                                  int64_t samples, const comm::Group& group);

// Returns the bytes of blocks that are stages of their own, with whole and with split backward
// passes, for a micro-batch of `samples`: all but fixed, borrowed and recomputed bytes. Counts
// those of two batches. Needs the conditions of PassMemory.
std::vector<layout::BlockInStage> count_stages(Task& task, const nn::NumericPrecision& precision,
                                               const data::Batch& small, const data::Batch& large,
                                               int64_t samples);

// Returns the bytes that a block takes while it is measured by itself (BlocksApart), without its
// inputs: weights and gradients, the optimizer's copies of both with its states, and activations.
double bytes_by_itself(const layout::ProfiledBlock& block);

// Returns the bytes of a rank that measures a profile block by block. The same on all ranks.
// Collective; blocks.
double bytes_of_profile_by_blocks(const TrainOptions& options, const data::Dataset& dataset,
                                  int64_t samples, const comm::Group& group);

// A batch of this many samples: the first ones of the data set, repeated as often as necessary.
data::Batch profiled_samples(const data::Dataset& dataset, int64_t samples);

}  // namespace troika::train
