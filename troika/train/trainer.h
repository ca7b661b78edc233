// The loop around data parallelism: epochs, exact validation, logs, checkpoints, summary.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/data/sampler.h"
#include "troika/train/callback.h"
#include "troika/train/options.h"
#include "troika/train/stop.h"
#include "troika/train/summary.h"
#include "troika/train/task.h"

namespace troika::train {

// Trains a task on the ranks of a group, each calling the same. Rank 0 writes, into
// folder/name of the options: config.toml, metrics.csv, TensorBoard events and summary.json. All
// ranks write checkpoints there; a run with trainer.ckpt_path goes on from one as if it had never
// ended, to the bit on as many ranks as before.
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

  // Accompanies every fit() from now on, after those that were added before. Callbacks that the
  // options ask for come first.
  void add(std::shared_ptr<Callback> callback) { callbacks_.push_back(std::move(callback)); }

  // Asked between passes, about once a second at least. When all ranks agree to end, fit() saves
  // and returns; the summary then says "stopped".
  void ask_to_stop(StopQuestion question) { question_ = std::move(question); }
  // What ended the latest fit(): `none` when it was done.
  cluster::StopRequest stopped_by() const { return stopped_by_; }

  std::filesystem::path folder() const;

 private:
  TrainOptions options_;
  comm::Group group_;
  Callbacks callbacks_;
  StopQuestion question_;
  cluster::StopRequest stopped_by_ = cluster::StopRequest::none;
};

// What is known of a run before it began.
RunSummary bare_summary(const TrainOptions& options, const comm::Group& group,
                        const std::filesystem::path& folder, const std::string& status);

// Samples a step over all ranks, from batch_size or global_batch_size.
int64_t global_batch(const TrainOptions& options, int ranks);

}  // namespace troika::train
