// Measures the memory of one micro-batch in each stage of a pipeline.
#pragma once

#include <vector>

#include "troika/data/dataset.h"
#include "troika/nn/precision.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/train/memory/pass_memory.h"
#include "troika/train/task/task.h"

namespace troika::train {

// Bytes of one micro-batch. Tensors that the stage takes, and the gradients of those that it gives,
// are not included in the passes' bytes, because they belong to edges or to other stages.
struct StageMemory {
  std::vector<double> taken;      // of each tensor of StageOfModel::takes
  std::vector<double> gradients;  // of the gradient of each of these; 0: it has none
  // Bytes of the gradient of each tensor of StageOfModel::gives; 0: no later stage sends one back.
  std::vector<double> given_gradients;
  double forward_peak = 0;  // beyond the bytes before the forward pass
  double kept = 0;          // from the forward to the backward pass
  // Parts of the backward pass, or of its input part, beyond the bytes before the forward pass. Its
  // gradients of the taken tensors are included. An event is a gradient, with its index in
  // nn::trained_parameters() of the stage's module, or the end.
  std::vector<PassPart> backward;
  std::vector<PassPart> backward_weight;  // the same for the weight part; empty: not split
  // Whether the weight part needs the taken tensors, and the gradients of the given ones.
  bool weight_part_takes_inputs = false;
  bool weight_part_takes_gradients = false;
  double weight_gradients = 0;  // all that the weight part starts from
  double validation = 0;        // the peak of a forward pass in a validation
};

// Runs a micro-batch through each stage by itself. `splits` has an entry for each stage: whether
// its backward pass has two parts. Needs the conditions of PassMemory. The module is left in
// training mode.
std::vector<StageMemory> measure_stages(Task& task, const nn::NumericPrecision& precision,
                                        const parallel::StagesOfModel& stages,
                                        const std::vector<bool>& splits, const data::Batch& batch);

// Interpolates between the memory of two sizes of micro-batches: `share` is 0 for `smaller`, 1 for
// `larger`. Throws Error(failure) if the two took different ways.
StageMemory interpolate(const StageMemory& smaller, const StageMemory& larger, double share);

}  // namespace troika::train
