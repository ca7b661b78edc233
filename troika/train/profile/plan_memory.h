// The memory of plans of a search, as MemoryPredictor predicts it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/plan/search/step_model.h"
#include "troika/train/options/options.h"
#include "troika/train/profile/offload_times.h"

namespace troika::train {

// The bytes of a rank under plans of one stage on all ranks.
class OneStageMemory {
 public:
  // `samples` are those of an optimizer step; with `offload`, there are also plans with offload.
  // Predicts on rank 0 alone, because ranks may be threads of one process. The result is the same
  // on all ranks. Collective; blocks.
  OneStageMemory(TrainOptions options, const data::Dataset& dataset,
                 const std::vector<layout::Profile>& profiles, int64_t samples,
                 const OffloadTargets* offload, const comm::Group& group);

  // Nothing for plans that are not predicted. The settings must have an index below the number of
  // profiles.
  std::optional<plan::DeviceBytes> operator()(const plan::StepSettings& settings) const;

 private:
  void predict(TrainOptions& options, const data::Dataset& dataset,
               const std::vector<layout::Profile>& profiles, int64_t samples,
               const OffloadTargets* offload, int ranks);

  // float64 [profiles, recomputation, offload of activations, offload of the optimizer, ZeRO stage,
  // the members of DeviceBytes]
  at::Tensor bytes_;
};

// Rank 0's share of its machine's memory for tensors, in bytes, if each of the machine's ranks
// takes as much; nothing with trainer.memory_check=off, or if it is not known. The same on all
// ranks. Collective; blocks.
std::optional<double> memory_of_rank(const TrainOptions& options, const comm::Group& group);

// The bytes of a rank that measures profiles (measure_profile()) with micro-batches of these sizes;
// 0 where they are not predicted. Predicts on rank 0 alone; the result is the same on all ranks.
// Collective; blocks.
std::vector<double> bytes_of_profiles(const TrainOptions& options, const data::Dataset& dataset,
                                      const std::vector<int64_t>& sizes, const comm::Group& group);

// The bytes of a rank of each stage of a pipeline that the plan in trainer.plan describes, one
// stage on each pipeline rank; empty if it is not predicted. Predicts on rank 0 alone; the result
// is the same on all ranks. Collective; blocks.
std::vector<plan::DeviceBytes> predict_stages(const TrainOptions& options,
                                              const data::Dataset& dataset, int stages,
                                              const comm::Group& group);

}  // namespace troika::train
