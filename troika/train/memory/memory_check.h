// Predicts a run's memory before it begins, and checks that the machine has enough.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/train/options/options.h"

namespace troika::train {

class Task;

struct MemoryOutlook {
  // The peak of each rank's tensors in training steps; empty: not predicted.
  std::vector<int64_t> tensor_bytes = {};
  std::string why_not = {};  // why it is not predicted; empty if it is, or if unknown here
};

// Predicts the memory of a run before its tensors are allocated. With trainer.memory_check, throws
// Error(usage) if the tensors of this machine's ranks are predicted to exceed the available memory,
// and warns if only their whole processes are. Changes the state of the random generator.
//
// Without a task, predicts on rank 0 for the zoo model that the options name. With a task, whose
// module exists already, predicts for that task; all ranks must call, because its steps may
// communicate. Predicts only plain tasks (class Task with a module, a forward and a loss): steps
// overridden by a program may have side effects, so they are not run. Runs no step with
// trainer.memory_check=off.
MemoryOutlook check_memory_of(const TrainOptions& options, const data::Dataset& dataset,
                              const comm::Group& group, Task* task = nullptr);

}  // namespace troika::train
