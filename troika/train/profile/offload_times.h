// Measures what offload adds to the times of a run.
#pragma once

#include <cstdint>
#include <string>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/plan/search/step_model.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Where plans may keep data, as layout::Plan's members of these names.
struct OffloadTargets {
  std::string activations;
  std::string optimizer;  // empty: the optimizer's states cannot be in files
};

// The targets of the options (`offload.activations` and `offload.optimizer`); where they have none,
// the run's folder, or for activations on a GPU the host's memory.
OffloadTargets offload_targets(const TrainOptions& options, const comm::Group& group);

// Runs passes of a micro-batch of this many samples on a rank, and steps of the optimizer, with and
// without offload, on all ranks at the same time. The times are means over ranks of medians, and
// at least 0. Makes the folders. Written pages stay in the system's cache as long as memory is
// free, so a run that leaves little of it may take longer.
//
// The result is the same on all ranks. Collective; blocks. Changes the state of LibTorch's default
// generator.
plan::OffloadSeconds measure_offload(TrainOptions options, const data::Dataset& dataset,
                                     const comm::Group& group, const OffloadTargets& targets,
                                     int64_t micro_batch);

}  // namespace troika::train
