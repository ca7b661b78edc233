// Builds the gradient exchange that `trainer.strategy` names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/parallel/exchange.h"
#include "troika/train/options.h"
#include "troika/train/task.h"

namespace troika::train {

// "ddp", "ddp_find_unused_parameters_true", "horovod", "zero1", "zero2", "zero3", "local_sgd",
// "post_local_sgd", "diloco" and "dp", then Lightning's names that mean one of these.
const std::vector<std::string>& strategy_names();
// The one of ours that a name of Lightning's means.
std::string canonical_strategy(const std::string& name);

// Converts a size of buckets from the options to bytes.
int64_t mebibytes(double count);

// Makes the strategy's exchange for the task's module. Throws Error(usage) for an unknown
// name, naming the nearest, for "dp" where the task has not trainer.devices replicas, and for a
// precision that the strategy cannot do. Tells `trace` of gradients' ways, unless it
// is null. Blocks; called by all ranks.
std::unique_ptr<parallel::Exchange> make_exchange(const TrainOptions& options, Task& task,
                                                  const comm::Group& group, Trace* trace);

// Whether trainer.devices are threads of one process, not processes.
bool in_one_process(const TrainOptions& options);

// A task for the model of the options, replicated for "dp".
std::unique_ptr<Task> make_task(const TrainOptions& options);

// How the gradients of several backward passes make one optimizer step.
struct Accumulation {
  int64_t passes = 1;
  double factor = 1;  // on the loss of each
};

// By trainer.accumulate_grad_batches, the mean of the passes; by horovod.backward_passes_per_step,
// their sum, or their mean with horovod.average_aggregated_gradients. Throws Error(usage) where
// both are given.
Accumulation accumulation(const TrainOptions& options);

}  // namespace troika::train
