// Predicts a run's memory before it begins, and checks whether the machine has as much.
#pragma once

#include <cstdint>
#include <string>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/train/options/options.h"

namespace troika::train {

class Task;

struct MemoryOutlook {
  int64_t tensor_bytes = 0;  // the peak of a rank's tensors in training; 0: not predicted
  std::string why_not = {};  // why it is not predicted; empty: it is, or this rank does not know
};

// Predicts before the run's own tensors are made. With trainer.memory_check, throws Error(usage)
// where the tensors of the ranks on this machine are predicted to take more than there is, and
// warns where their processes are. Changes the state of the random generator.
//
// Without a task, for the model of the zoo that the options name, on rank 0. With one, whose module
// is made already, for that; called by all ranks, as its steps may communicate. Predicted is what a
// Task does with a module, a forward and a loss: steps that a class of the program overrides may do
// more than compute, and are not called for this. Nothing is called with trainer.memory_check=off.
MemoryOutlook check_memory_of(const TrainOptions& options, const data::Dataset& dataset,
                              const comm::Group& group, Task* task = nullptr);

}  // namespace troika::train
