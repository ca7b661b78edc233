// The view of a run that hooks get, and the requests that they may make.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "troika/comm/world/mesh_groups.h"
#include "troika/observe/metric_log.h"
#include "troika/observe/summary.h"
#include "troika/parallel/parameter_store.h"
#include "troika/train/options/options.h"
#include "troika/train/options/run_mode.h"
#include "troika/train/run/train_progress.h"
#include "troika/train/task/task.h"

namespace troika::layout {
struct Plan;
}
namespace troika::parallel {
class ParameterStore;
}

namespace troika::train {

class Optimization;

// The plan of fit(), and the parts that carry it out.
struct TrainingParts {
  const layout::Plan* plan = nullptr;  // null outside of fit()
  // The store of the parameters, and the optimizer of the tensors that this rank steps. Not null
  // from on_fit_start on.
  parallel::ParameterStore* store = nullptr;
  Optimization* optimization = nullptr;
  double learning_rate = 0;  // of the latest optimizer step
};

// When fit() validates.
struct ValidationTimes {
  // Whether validations take place only at the end of each epoch, or not at all.
  bool only_at_epoch_ends = true;
  // In on_train_batch_end: whether a validation comes before the next micro-batch.
  bool follows = false;
};

// Functions of fit() for hooks; empty outside of it.
struct RunActions {
  // Runs the forward passes of an epoch in training mode, without gradients and logs, to update
  // statistics that the module keeps. Called by all ranks.
  std::function<void()> run_training_data = {};
  // Writes the module's parameters and buffers as one file of weights. In a pipeline, rank 0
  // collects those of all stages, and needs memory for them. Called by all ranks; blocks.
  std::function<void(const std::filesystem::path& file)> save_weights = {};
  // Writes this rank's state alone into `folder`, as a checkpoint of one rank, and returns the
  // checkpoint. A run resumes from it with the current optimizer step. Does not communicate if the
  // strategy leaves all states on each rank.
  std::function<std::filesystem::path(const std::filesystem::path& folder)> save_alone = {};
  // Implements FitContext::save_checkpoint().
  std::function<std::filesystem::path(const std::filesystem::path& path, bool weights_only)>
      save_checkpoint = {};
};

// The requests of hooks that fit() has not carried out yet.
struct RunRequests {
  std::string stop_reason = {};  // empty: no stop was asked for
  bool checkpoint = false;
};

struct FitContext {
  RunMode mode = RunMode::fit;
  const TrainOptions& options;
  const comm::Group& group;  // all ranks
  // groups.data() has the ranks that share the samples.
  const comm::MeshGroups& groups;
  std::filesystem::path folder;  // of the run
  Task& task;
  // The progress of the run; outside of fit(), that of a new run. Its `metrics` are the latest
  // values that are the same on all ranks, so ranks may base common decisions on them.
  const TrainProgress& at;
  // The log of the training; during an evaluation, the log of the evaluation.
  observe::MetricLog* log = nullptr;
  // The values of the latest row that are the same on all ranks: the validation's in
  // on_validation_end, the epoch's in on_train_epoch_end of a callback that monitors().
  observe::MetricValues row = {};
  TrainingParts training = {};
  ValidationTimes validation = {};
  RunActions actions = {};
  RunRequests requests = {};
  // For the run's summary.
  std::optional<observe::Roofline> roofline = {};
  // The duration of the run, as ranks agree on it about once a second; updated only if a callback
  // keeps_time().
  double seconds = 0;

  // Ends the run after the current optimizer step or epoch, but not before trainer.min_epochs and
  // min_steps. All ranks must call this in the same hook.
  void ask_to_stop(const std::string& reason);
  // Requests a checkpoint at the end of the current micro-batch or epoch. All ranks must call this
  // in the same hook.
  void ask_for_checkpoint() { requests.checkpoint = true; }
  // Does what Trainer::save_checkpoint() does in a hook, for the run of this context. Throws
  // Error(usage) outside of fit().
  std::filesystem::path save_checkpoint(const std::filesystem::path& path, bool weights_only);
  // Returns whether a stop was requested, or max_steps or max_epochs is reached. Call it between
  // epochs or steps.
  bool is_done() const { return is_done_after(at.epoch); }
  // Whether the current epoch is the last, as far as is known now.
  bool is_last_epoch() const { return is_done_after(at.epoch + 1); }

  bool is_done_after(int64_t epochs) const;
};

}  // namespace troika::train
