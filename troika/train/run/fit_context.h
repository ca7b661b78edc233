// The view of a run that hooks get, and the requests they may make.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "troika/comm/mesh_groups.h"
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

struct FitContext {
  RunMode mode = RunMode::fit;
  const TrainOptions& options;
  const comm::Group& group;  // of all ranks
  // groups.data(): the ranks that share the samples out.
  const comm::MeshGroups& groups;
  std::filesystem::path folder;  // of the run
  Task& task;
  // Where the run stands; outside of fit() at its beginning. `metrics` in it are the latest values
  // of all names that are the same on all ranks: fit for decisions that ranks must make alike.
  const TrainProgress& at;
  // Where log() goes: the training's, or the evaluation's while one is on.
  observe::MetricLog* log = nullptr;
  // The values of the row just reduced that all ranks have alike: in on_validation_end the
  // validation's, in on_train_epoch_end of a callback that monitors() the epoch's.
  observe::MetricValues row = {};
  // The plan that fit() carries out; null outside of it.
  const layout::Plan* plan = nullptr;
  // Who owns which parameters, and what this rank steps: they are there from on_fit_start on.
  parallel::ParameterStore* store = nullptr;
  Optimization* optimization = nullptr;
  // The forward passes of an epoch in training mode, without gradients and logs: for statistics
  // that the module keeps. Called by all ranks.
  std::function<void()> run_training_data = {};
  // Validations come at the end of each epoch and nowhere else, or there are none.
  bool validates_at_epoch_ends = true;
  // In on_train_batch_end: a validation comes before the next pass.
  bool validation_follows = false;
  // Writes this rank's state, and nothing of others, as a checkpoint of one rank into a folder of
  // the caller's: to go on with the optimizer step that is on. Does not communicate, where the
  // strategy leaves each rank all states. Returns the checkpoint.
  std::function<std::filesystem::path(const std::filesystem::path& folder)> save_alone = {};
  // Of the run's summary.
  std::optional<observe::Roofline> roofline = {};
  double learning_rate = 0;  // of the latest optimizer step
  // The run's duration, as ranks agree on it about once a second, where a callback
  // keeps_time().
  double seconds = 0;

  // The run ends after the optimizer step or epoch that is on, as if there were no more, but not
  // before trainer.min_epochs and min_steps. All ranks must ask at the same hook.
  void ask_to_stop(const std::string& reason);
  // One is written at the end of the pass or epoch that is on; the same on all ranks.
  void ask_for_checkpoint() { checkpoint_asked = true; }
  // Between epochs and steps: somebody asked to stop, or max_steps or max_epochs are made.
  bool is_done() const { return is_done_after(at.epoch); }
  // No epoch follows the one that is on, as things stand.
  bool is_last_epoch() const { return is_done_after(at.epoch + 1); }

  bool is_done_after(int64_t epochs) const;

  std::string stop_reason = {};  // empty: nobody asked
  bool checkpoint_asked = false;
  // Trainer::save_checkpoint(), for hooks of fit().
  std::function<std::filesystem::path(const std::filesystem::path& path, bool weights_only)>
      save_checkpoint = {};
};

}  // namespace troika::train
