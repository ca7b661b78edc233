// Measures what offload adds to the times of a run.
#pragma once

#include <cstdint>
#include <string>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
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

// Return the seconds that offload adds, on all ranks at the same time: to the passes of a
// micro-batch of this many samples, and to a step of the optimizer. They are means over ranks of
// differences of means without outliers, and at least 0. Make the folders. Written pages stay in
// the system's cache as long as memory is free, so a run that leaves little of it may take longer.
// The copies of gradients and parameters between a GPU and the host are not included.
//
// The results are the same on all ranks. Collective; block. Change the state of LibTorch's default
// generator.
double offloaded_pass_seconds(const TrainOptions& options, const data::Dataset& dataset,
                              const comm::Group& group, const OffloadTargets& targets,
                              int64_t micro_batch);
double offloaded_optimizer_seconds(TrainOptions options, const comm::Group& group,
                                   const OffloadTargets& targets);

}  // namespace troika::train
