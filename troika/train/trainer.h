// The loop around data parallelism: epochs, exact validation, logs, checkpoints, summary.
#pragma once

#include <filesystem>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/data/sampler.h"
#include "troika/train/options.h"
#include "troika/train/summary.h"
#include "troika/train/task.h"

namespace troika::train {

// Trains a task on the ranks of a group, each calling the same. Rank 0 alone writes, into
// folder/name of the options: config.toml, metrics.csv, TensorBoard events, checkpoints and
// summary.json.
//
// Step k of an epoch trains on the k-th global batch of the sampler, so the course of a run does
// not depend on the number of ranks that share a global batch (up to rounding, and up to batch-norm
// statistics, which each rank takes over its own share unless trainer.sync_batchnorm is set).
// Validation counts every sample once.
class Trainer {
 public:
  Trainer(TrainOptions options, comm::Group group);

  // Blocks until done. The data sets must hold what the task's module takes; the module's
  // parameters become rank 0's. Throws what the task, the data or the group throw; the summary then
  // says "failed", without numbers where nothing was trained. No summary of an earlier run of this
  // name survives the call.
  RunSummary fit(Task& task, const data::Dataset& training, const data::Dataset& validation);

  std::filesystem::path folder() const;

 private:
  TrainOptions options_;
  comm::Group group_;
};

// Samples a step over all ranks, from batch_size or global_batch_size.
int64_t global_batch(const TrainOptions& options, int ranks);

}  // namespace troika::train
