// Measures the profile of a configured model.
#pragma once

#include <cstdint>
#include <string>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/layout/profile.h"
#include "troika/train/options/options.h"

namespace troika::train {

struct ProfileOptions {
  int64_t micro_batch = 0;  // samples of a micro-batch on a rank; 0: as the run has
  double seconds = 3;       // for the passes of the blocks; links and optimizer take less
  // The name of a device of published_rates() to which the times are scaled (like_device.h); empty:
  // none.
  std::string like = {};
  // Measures the blocks one at a time, with the memory of no other block: for models that are
  // larger than a rank's memory (counted_blocks.h).
  bool block_by_block = false;
};

// Measures the times and bytes of the blocks of the model that the options name, the optimizer, and
// the links between the ranks. All ranks run the same passes at the same time, as in training, so
// the times include what processes of one machine take from each other. Times are means over ranks
// of means over micro-batches, without outliers. Bytes are counted on tensors without memory
// (PassMemory), so the measurement itself takes the memory of one micro-batch and of the optimizer.
// Block by block, the optimizer and the overlap are those of the block that takes the most memory,
// and nothing of a block is in caches when its passes begin.
//
// The result is the same on all ranks. Collective; blocks. Changes the state of LibTorch's default
// generator. Throws Error(usage) for options that name no model of blocks, and for an unknown
// device `like`.
layout::Profile measure_profile(const TrainOptions& options, const data::Dataset& dataset,
                                const comm::Group& group, const ProfileOptions& asked = {});

// The samples of a micro-batch on each rank, if `options` are run on `ranks` ranks.
int64_t profiled_batch(const TrainOptions& options, const comm::Group& group);

}  // namespace troika::train
