// One call of Trainer::fit(): its loop, and all objects that live as long as the call.
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
#include "troika/comm/timeline.h"
#include "troika/comm/world/mesh_groups.h"
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
  // `groups` are those of the plan's mesh. All referenced objects must outlive this object.
  Fit(const TrainOptions& options, layout::Plan plan, comm::MeshGroups groups,
      const std::filesystem::path& folder, Task& task, const data::Dataset& training,
      const data::Dataset& validation, const StopQuestion& question, Callbacks callbacks);
  ~Fit();
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  // Returns the request that ended the run; `none` if the run completed.
  cluster::StopRequest run();
  // Calls the hooks' on_exception with an error of run().
  void tell(const std::exception& problem) {
    has_failed_ = true;
    hooks_.tell(problem);
  }
  observe::RunSummary summary(const std::string& status) const;
  // Called by all ranks.
  std::vector<observe::PhaseTime> phase_times() const { return times_.medians(world_); }
  // Implements Trainer::save_checkpoint() in hooks. Returns the path; save_asked() writes the
  // checkpoint.
  std::filesystem::path ask_to_save_as(const std::filesystem::path& path, bool weights_only);
  // The state of the run for a checkpoint. Its tensors share memory with the module and the
  // optimizer, and outlive this object.
  checkpoint::RankState checkpoint_state(bool weights_only) const;
  checkpoint::CheckpointInfo checkpoint_info() const {
    return {.epoch = at_.epoch, .step = at_.step, .plan = plan_.text()};
  }
  // The peak of tensor bytes, by base/memory.h, in steps so far, without validations and
  // checkpoints. 0 if bytes are not counted.
  int64_t peak_tensor_bytes() const { return peak_tensor_bytes_; }
  // Called before run(). Has no predicted memory.
  RunPlan plan() const;

 private:
  bool is_main() const { return world_.rank() == 0; }
  at::Device device() const { return engine_->placement().device; }
  observe::Profile* profile() { return profile_ ? &*profile_ : nullptr; }
  Trace* trace() { return timeline_ ? &timeline_->trace() : nullptr; }

  // The number of optimizer steps of the whole run; 0: a time limit ends it.
  int64_t planned_steps() const;
  // For example "2/10"; counts from 1.
  std::string epoch_text() const;
  data::SamplerState sampler_state() const;
  int64_t passes_left() const;
  EvaluationLoop validation_loop(int64_t batches);
  // Validates a few batches as a test and discards the result. The run does not depend on it.
  void check_sanity();
  bool is_stopping() const { return stop_.asked() != cluster::StopRequest::none; }
  void call_on_fit_start();
  // The body of run() between its hooks.
  void go_on();
  // Whether the run, saved under greater limits, is already beyond this run's limits.
  bool is_beyond_limits() const;
  // Calls `body`, in which ranks do not communicate. If it throws on any rank, all ranks throw,
  // with the module whole.
  void on_all_or_none(const std::function<void()>& body);
  // Calls `body`, which throws an Error on all ranks or on none. Makes the module whole if it
  // throws.
  void or_leave_module_whole(const std::function<void()>& body);
  // Whether a validation is due after `passes` micro-batches of the epoch.
  bool is_validation_due(int64_t passes) const;
  // Supplies the micro-batches of a step from the loader; see fit_epoch.cpp.
  class LoadedMicroBatches;
  // Returns early, after any micro-batch, if asked to stop.
  void train_epoch();
  // Makes an optimizer step, or a part of it if leaves_step(). `left` is the number of
  // micro-batches left in the epoch. Returns how many of them were trained on.
  int64_t train_step(data::Loader& loader, int64_t left);
  void start_batch(const data::Batch& batch);
  // `is_last`: the last micro-batch of a step.
  void finish_batch(const data::Batch& batch, const at::Tensor& loss, bool is_last,
                    bool is_last_of_epoch);
  // Logs a loss. Throws Error(failure) if ends_run(). `batch` is the loss's micro-batch; null: it
  // is loaded again if needed.
  void take_loss(const StepLoss& loss, const data::Batch* batch);
  // Logs the losses that are still on a GPU, and waits for them. Called before a row, a checkpoint
  // or a validation.
  void take_losses();
  void log_loss(const StepLoss& loss);
  // Between two micro-batches of a step: whether to leave the step, because a checkpoint is due or
  // the run was asked to stop.
  bool leaves_step();
  // Called once after each micro-batch, on all ranks.
  bool is_asked_to_stop();
  // Returns early, during the validation, if asked to stop.
  void end_epoch();
  bool validates_after_epoch() const;
  void log_training();
  void log_epoch();
  // Returns whether the validation completed. If not, the run is to be saved.
  bool validate();
  // Gives the row and the other values to the loggers. Values that are the same on all ranks become
  // the latest metrics.
  void log_row(const observe::MetricValues& common, const observe::LoggedRow& row,
               const observe::MetricValues& own = {});
  // Implements FitContext::run_training_data.
  void run_training_data();
  void write_timeline();

  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }
  // The folder of the checkpoint to resume from, or empty; the same on all ranks.
  std::filesystem::path checkpoint_to_load() const;
  // With the same number of ranks, takes the link bandwidths of the checkpoint, so that the same
  // algorithms are chosen and sums have the same bits.
  void find_links(const std::optional<checkpoint::CheckpointReader>& saved);
  // Throws Error(usage) for a checkpoint of weights alone, and for an earlier format.
  static void require_resumable(const checkpoint::CheckpointReader& saved);
  // Loads the state without communication. Returns a function that all ranks must call next (see
  // Engine::load()).
  std::function<void()> restore(const checkpoint::CheckpointReader& saved);
  // Loads the training log.
  void restore_log(const checkpoint::CheckpointReader& saved);
  // Returns the id of this run: the checkpoint's, if the logs in the folder belong to the same run,
  // otherwise a new id. Called by all ranks, which get the same id.
  std::string choose_id(const std::optional<checkpoint::CheckpointReader>& saved) const;
  // Saves the full state to resume from, or weights alone.
  void save(bool to_go_on);
  // Writes the checkpoints that hooks asked for: full, weights only, and those of
  // save_checkpoint(). Called only where all callbacks have had the same hooks and `at_` includes
  // all work done, so a resumed run neither repeats nor misses anything.
  void save_asked();
  void write_asked();
  // The engine's state for a checkpoint.
  checkpoint::RankState state(bool in_step) const;
  // Adds the state outside the engine.
  void add_course(const TrainProgress& at, checkpoint::RankState& state) const;
  // Implements FitContext::save_alone.
  std::filesystem::path save_alone(const std::filesystem::path& folder);
  // Waits for the checkpoint that is being written.
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
  const data::RankOf ranks_;  // the ranks that share the samples
  const int64_t parameters_;  // elements in the whole model, and the trainable ones among them
  const int64_t trainable_;
  const int64_t batch_;  // samples of a micro-batch over all ranks
  const data::Sampler sampler_;
  const Limits limits_;
  std::optional<comm::Timeline> timeline_;
  observe::StepTimes times_;
  std::optional<parallel::ScopedSyncBatchNorm> spanning_batch_norm_;
  std::unique_ptr<Engine> engine_;
  std::optional<observe::StepWarnings> warnings_;  // set in run()
  int64_t peak_tensor_bytes_ = 0;
  StepLosses losses_;  // on a GPU, not logged yet
  Stop stop_;
  TrainProgress at_;
  observe::MetricLog log_;
  observe::MetricLog evaluation_log_;
  const Callbacks callbacks_;  // callbacks that monitor() come last
  FitContext context_;
  std::optional<observe::Profile> profile_;
  const HookCalls hooks_;
  std::optional<checkpoint::CheckpointWriter> writer_;
  struct Asked {
    std::filesystem::path path;
    bool weights_only;
  };
  std::vector<Asked> asked_;  // by Trainer::save_checkpoint(), not written yet
  bool has_failed_ = false;
  std::filesystem::path checkpoint_;  // the latest
  int64_t saved_samples_ = -1;        // samples trained on at the latest full checkpoint
  int64_t validated_samples_ = -1;    // samples trained on at the latest validation
  std::string id_;                    // the run's id, in its checkpoints and beside its logs
  at::Tensor links_;                  // MeshGroups::links(); undefined with one rank
  std::optional<RunOutputs> outputs_;
  FitClock clock_;
};

}  // namespace troika::train
