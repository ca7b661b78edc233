// The checkpoints that a run writes.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "troika/checkpoint/writer.h"
#include "troika/layout/plan.h"
#include "troika/train/engine/engine.h"
#include "troika/train/loop/epochs.h"
#include "troika/train/loop/run_measurements.h"
#include "troika/train/loop/run_origin.h"
#include "troika/train/loop/run_setup.h"
#include "troika/train/loop/train_log.h"
#include "troika/train/options/callback_options.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

// The parts of a run whose state is saved. They must outlive RunCheckpoints.
struct SavedParts {
  const RunSetup& setup;
  const RunOrigin& origin;
  Epochs& epochs;
  RunMeasurements& measured;
  FitContext& context;
  TrainLog& log;
  Engine& engine;
};

// Whether checkpoints are written by a thread of their own (checkpoint.async) under this plan.
bool writes_beside_training(const ModelCheckpointOptions& options, const layout::Plan& plan);

// The functions that write, except save_alone(), are called by all ranks, and block.
class RunCheckpoints {
 public:
  // Called by all ranks; blocks.
  explicit RunCheckpoints(const SavedParts& parts);

  // Called when the run has resumed from `checkpoint`; empty: it is new.
  void begin_from(const std::filesystem::path& checkpoint);
  // The latest checkpoint that this run has written or resumed from; empty if there is none.
  const std::filesystem::path& latest() const { return latest_; }
  // Whether the latest full checkpoint includes all samples trained on.
  bool has_all_samples() const { return saved_samples_ == parts_.epochs.at().samples; }

  // Implements Trainer::save_checkpoint() in hooks. Returns the path; save_asked() writes the
  // checkpoint. Throws Error(usage) after refuse_requests().
  std::filesystem::path ask_to_save_as(const std::filesystem::path& path, bool weights_only);
  // Called when the run has failed.
  void refuse_requests() { has_failed_ = true; }
  // Whether hooks have asked for a checkpoint that is not written yet.
  bool has_requests() const { return parts_.context.requests.checkpoint || !asked_.empty(); }
  // Writes the checkpoints that hooks asked for: full, weights only, and those of
  // save_checkpoint(). Called only where all callbacks have had the same hooks and the progress
  // includes all work done, so a resumed run neither repeats nor misses anything.
  void save_asked();
  // Writes only the checkpoints requested by save_checkpoint().
  void save_asked_paths();
  // Implements FitContext::actions.save_weights.
  void save_weights(const std::filesystem::path& file) const;
  // Saves the full state from which a run can resume, or (without `to_go_on`) only the weights.
  void save(bool to_go_on);
  // Saves what the last save() left to another replica of a quorum, if it was at this step.
  void save_left_out();
  // Waits for the checkpoint that is being written.
  void finish();
  // Calls finish() if the checkpoint is written already; otherwise does nothing.
  void finish_if_written() {
    if (writer_ && writer_->is_done()) finish();
  }
  // Writes the full state, from which another replica of a quorum or peer of a swarm continues,
  // below a folder; that of the beginning of the step, if the gradients of the step are those of
  // one peer. Returns the checkpoint. Does not count as one of the run.
  std::filesystem::path save_for_replica(const std::filesystem::path& folder);
  // Implements RunActions::save_alone.
  std::filesystem::path save_alone(const std::filesystem::path& folder);

  // The state of the run for a checkpoint. Its tensors share memory with the module and the
  // optimizer, and outlive this object.
  checkpoint::RankState state(bool weights_only) const;
  checkpoint::CheckpointInfo info() const;

 private:
  // The engine's state for a checkpoint.
  checkpoint::RankState engine_state(bool in_step) const;
  // Adds the state that is not in the engine: progress, log, callbacks, random generators, seed,
  // run id.
  void add_course(const TrainProgress& at, checkpoint::RankState& state) const;
  void announce(const std::filesystem::path& checkpoint);

  struct Asked {
    std::filesystem::path path;
    bool weights_only;
  };

  const SavedParts parts_;
  std::optional<checkpoint::CheckpointWriter> writer_;  // if writes_beside_training()
  std::vector<Asked> asked_;                            // by save_checkpoint(), not written yet
  bool has_failed_ = false;
  std::filesystem::path latest_;
  int64_t saved_samples_ = -1;  // samples trained on at the latest full checkpoint
  // The samples trained on at the latest save() that was left to another replica, and its argument.
  std::optional<std::pair<int64_t, bool>> left_out_;
};

}  // namespace troika::train
