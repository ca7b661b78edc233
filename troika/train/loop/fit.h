// One call of Trainer::fit(): the loop, and everything that lives as long as it.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/writer.h"
#include "troika/comm/mesh_groups.h"
#include "troika/comm/timeline.h"
#include "troika/data/loader.h"
#include "troika/data/sampler.h"
#include "troika/layout/plan.h"
#include "troika/observe/step_times.h"
#include "troika/observe/step_warnings.h"
#include "troika/observe/summary.h"
#include "troika/parallel/sync_batch_norm.h"
#include "troika/train/engine/engine.h"
#include "troika/train/loop/evaluation_loop.h"
#include "troika/train/loop/fit_clock.h"
#include "troika/train/options/limits.h"
#include "troika/train/run/callback.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/hook_calls.h"
#include "troika/train/run/run_outputs.h"
#include "troika/train/run/run_plan.h"
#include "troika/train/run/stop.h"
#include "troika/train/run/train_progress.h"
#include "troika/train/task/step_losses.h"

namespace troika::train {

class Fit {
 public:
  // `groups` are those of the plan's mesh. All that is referred to must outlive this object.
  Fit(const TrainOptions& options, layout::Plan plan, comm::MeshGroups groups,
      const std::filesystem::path& folder, Task& task, const data::Dataset& training,
      const data::Dataset& validation, const StopQuestion& question, Callbacks callbacks);
  ~Fit();
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  // Returns the request that ended it: `none` when it is done.
  cluster::StopRequest run();
  // Tells the hooks what run() threw.
  void tell(const std::exception& problem) {
    has_failed_ = true;
    hooks_.tell(problem);
  }
  observe::RunSummary summary(const std::string& status) const;
  // Called by all ranks.
  std::vector<observe::PhaseTime> phase_times() const { return times_.medians(world_); }
  // Trainer::save_checkpoint() inside of run(). Returns the path; save_asked() writes.
  std::filesystem::path ask_to_save_as(const std::filesystem::path& path, bool weights_only);
  // The run as a checkpoint holds it. Its tensors share memory with the module and the optimizer,
  // and outlive this object.
  checkpoint::RankState checkpoint_state(bool weights_only) const;
  checkpoint::CheckpointInfo checkpoint_info() const {
    return {.epoch = at_.epoch, .step = at_.step, .plan = plan_.text()};
  }
  // The most bytes that base/memory.h counted in steps so far: validation and checkpoints are no
  // part of it. 0 where nothing is counted.
  int64_t peak_tensor_bytes() const { return peak_tensor_bytes_; }
  // Before run(). Without predicted memory.
  RunPlan plan() const;

 private:
  bool is_main() const { return world_.rank() == 0; }
  at::Device device() const { return engine_->placement().device; }
  observe::Profile* profile() { return profile_ ? &*profile_ : nullptr; }
  Trace* trace() { return timeline_ ? &timeline_->trace() : nullptr; }

  // The number of steps of the whole run; 0: it ends by the clock.
  int64_t planned_steps() const;
  // "2/10", counted from 1.
  std::string epoch_text() const;
  data::SamplerState sampler_state() const;
  int64_t passes_left() const;
  EvaluationLoop validation_loop(int64_t batches);
  // Validates a little and forgets it; nothing of the run depends on it.
  void check_sanity();
  bool is_stopping() const { return stop_.asked() != cluster::StopRequest::none; }
  void call_on_fit_start();
  // The body of run() between its hooks.
  void go_on();
  // Whether a run with greater limits has made more than this one's allow.
  bool is_beyond_limits() const;
  // Calls `body`, in which ranks do not communicate. Throws on all ranks where it throws on one,
  // with the module whole.
  void on_all_or_none(const std::function<void()>& body);
  // Calls `body`, which throws an Error on all ranks or on none: then the module is whole.
  void or_leave_module_whole(const std::function<void()>& body);
  // After a step of so many passes.
  bool is_validation_due(int64_t passes) const;
  // The micro-batches of a step, from the loader: fit_epoch.cpp.
  class LoadedMicroBatches;
  // Returns early, after any micro-batch, when asked to stop.
  void train_epoch();
  // An optimizer step, or a part of it: returns early where leaves_step(). Returns how many
  // micro-batches were trained on, of the `left` of the epoch.
  int64_t train_step(data::Loader& loader, int64_t left);
  void start_batch(const data::Batch& batch);
  // `is_last`: of a step.
  void finish_batch(const data::Batch& batch, const at::Tensor& loss, bool is_last,
                    bool is_last_of_epoch);
  // Logs a loss. Ends the run by Error(failure) where ends_run(); `batch` is the loss's
  // micro-batch, null where it is to be loaded again.
  void take_loss(const StepLoss& loss, const data::Batch* batch);
  // Takes the losses that are still on a GPU, for which it waits: before a row, a checkpoint or a
  // validation.
  void take_losses();
  void log_loss(const StepLoss& loss);
  // Between two micro-batches of a step: whether a checkpoint is to be written, or the run is asked
  // to stop.
  bool leaves_step();
  // Called once after each micro-batch, on all ranks.
  bool is_asked_to_stop();
  // Returns early, in the validation, when asked to stop.
  void end_epoch();
  bool validates_after_epoch() const;
  void log_training();
  void log_epoch();
  // Whether it was not left: then its epoch is to be ended, or the run to be saved.
  bool validate();
  // Gives what the row has, and after it the other values, to the loggers; those that are the same
  // on all ranks become the latest metrics.
  void log_row(const observe::MetricValues& common, const observe::LoggedRow& row,
               const observe::MetricValues& own = {});
  // FitContext::run_training_data.
  void run_training_data();
  void write_timeline();

  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }
  // The folder of a checkpoint to go on from, or nothing; the same on all ranks.
  std::filesystem::path checkpoint_to_load() const;
  // As many ranks as before choose algorithms by the links they had, so that sums have their bits.
  void settle_links(const std::optional<checkpoint::CheckpointReader>& saved);
  // Throws Error(usage) for a checkpoint of weights alone, and for one of an earlier format.
  static void require_resumable(const checkpoint::CheckpointReader& saved);
  // Returns what is to be called on all ranks then (Engine::load()); ranks do not communicate
  // before.
  std::function<void()> restore(const checkpoint::CheckpointReader& saved);
  // The training log.
  void restore_log(const checkpoint::CheckpointReader& saved);
  // The id of this run: that of the checkpoint to go on from, where the logs in the folder are of
  // the same run; else a new one. Called by all ranks, which get the same.
  std::string choose_id(const std::optional<checkpoint::CheckpointReader>& saved) const;
  // With all that a run goes on from, or weights alone.
  void save(bool to_go_on);
  // Writes the checkpoints that hooks asked for: of both kinds, and those of save_checkpoint().
  // Called where all callbacks have had the same hooks and `at_` tells of all that was done, so
  // that a run that goes on repeats and misses nothing.
  void save_asked();
  void write_asked();
  // The engine's state, as checkpoints hold it.
  checkpoint::RankState state(bool in_step) const;
  // Adds the state of everything but the engine.
  void add_course(const TrainProgress& at, checkpoint::RankState& state) const;
  // FitContext::save_alone.
  std::filesystem::path save_alone(const std::filesystem::path& folder);
  // Waits for a checkpoint that is being written.
  void finish_saving();
  void saved(const std::filesystem::path& checkpoint);

  const TrainOptions& options_;
  const layout::Plan plan_;
  const comm::MeshGroups groups_;
  const comm::Group& world_;
  const std::filesystem::path folder_;
  Task& task_;
  const data::Dataset& training_;
  const data::Dataset& validation_;
  const data::RankOf ranks_;  // that share the samples out
  const int64_t parameters_;  // numbers in the whole model's; of them
  const int64_t trainable_;
  const int64_t batch_;  // samples a pass over all ranks
  const data::Sampler sampler_;
  const Limits limits_;
  std::optional<comm::Timeline> timeline_;
  observe::StepTimes times_;
  std::optional<parallel::ScopedSyncBatchNorm> spanning_batch_norm_;
  std::unique_ptr<Engine> engine_;
  std::optional<observe::StepWarnings> warnings_;  // in run()
  int64_t peak_tensor_bytes_ = 0;
  StepLosses losses_;  // on a GPU, that are not logged yet
  Stop stop_;
  TrainProgress at_;
  observe::MetricLog log_;
  observe::MetricLog evaluation_log_;
  const Callbacks callbacks_;  // those that monitor last
  FitContext context_;
  std::optional<observe::Profile> profile_;
  const HookCalls hooks_;
  std::optional<checkpoint::CheckpointWriter> writer_;
  struct Asked {
    std::filesystem::path path;
    bool weights_only;
  };
  std::vector<Asked> asked_;  // by Trainer::save_checkpoint(), and not written yet
  bool has_failed_ = false;
  std::filesystem::path checkpoint_;  // the latest
  int64_t saved_samples_ = -1;        // trained on when one to go on from was written
  int64_t validated_samples_ = -1;    // trained on at the latest validation
  std::string id_;                    // of the run, in its checkpoints and beside its logs
  at::Tensor links_;                  // MeshGroups::links(); undefined on one rank
  std::optional<RunOutputs> outputs_;
  FitClock clock_;
};

}  // namespace troika::train
