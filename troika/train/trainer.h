// The Trainer: training with exact validation, logs, checkpoints and a summary; testing;
// prediction.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/data/loader.h"
#include "troika/observe/summary.h"
#include "troika/train/memory/memory_check.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"
#include "troika/train/run/run_folder.h"
#include "troika/train/run/stop.h"
#include "troika/train/task/data_module.h"
#include "troika/train/task/task.h"

namespace troika::parallel {
class SwarmMember;
}

namespace troika::train {

class QuorumRun;
struct ReplicaRun;

// Trains a task on the ranks of a group. All ranks make the same calls. RunFolder::claim() decides
// on the run's folder. Rank 0 writes config.toml, metrics.csv, TensorBoard events and summary.json
// there; all ranks write checkpoints there. A run with trainer.ckpt_path resumes from a checkpoint
// as if it had never been interrupted, and bit for bit on the same number of ranks.
//
// Step k of an epoch trains on the sampler's k-th global batch. The course of a run therefore does
// not depend on the number of ranks that share a global batch, up to rounding and batch-norm
// statistics (each rank computes them over its own samples unless trainer.sync_batchnorm is set).
// Validation counts every sample once.
//
// With strategies downpour and sandblaster, each rank is a replica that trains on samples of its
// own, in a run of its own: see docs/downpour.md and docs/sandblaster.md. Hooks and callbacks then
// see a group of one rank.
//
// With strategy ft_ddp, and with diloco under a launch with a lighthouse, each process is a replica
// in a run of its own, with a group of one rank: see docs/fault-tolerance.md and docs/diloco.md.
// With strategy swarm, each process is a peer in a run of its own, whose micro-batches are of an
// order of its own: see docs/swarm.md.
class Trainer {
 public:
  // Throws Error(usage) if the options ask for a different group (see require_group_of());
  // world_options() returns the matching options for comm::world(). `claimed` is the run's folder
  // if the caller has claimed it already; the first fit() then uses it.
  Trainer(TrainOptions options, comm::Group group, std::optional<RunFolder> claimed = {});

  // Blocks until the run ends. The samples must be valid inputs of the task's module. The module's
  // parameters become those of rank 0. Rank 0 logs a summary of the run before and after it
  // (trainer.enable_model_summary). Holds the lock of the run's folder until it returns. A fit()
  // that does not resume from a checkpoint of its own run gets a new folder.
  //
  // Rethrows errors of the task, the data and the group. An error of LibTorch becomes
  // Error(failure), with LibTorch's error nested in it. After an error, summary.json has the status
  // "failed" and the reason; it has no numbers if no training took place.
  observe::RunSummary fit(Task& task, const data::Dataset& training,
                          const data::Dataset& validation);

  // Iterates once over a data set, in evaluation mode and without gradients, under
  // trainer.precision and memory_format. Every sample counts once on any number of ranks. Writes
  // nothing but a profile.
  //
  // `ckpt` chooses the weights. Empty: the module's current ones. Otherwise find_checkpoint() looks
  // for them on rank 0: "last" or "best" of this run, the folder of another run, a checkpoint, or a
  // file. The module on every rank keeps the loaded weights. Throws Error(usage) if there is no
  // such checkpoint. Calls the hooks of the task and of the callbacks given to add(), but not those
  // of callbacks that the options configure for fit().
  //
  // Returns the metrics under the names that fit() uses: "validation/loss" and
  // "validation/accuracy", or "test/loss" and "test/accuracy", followed by the numbers that the
  // steps logged. A number logged without sync_dist is this rank's own. Empty if
  // trainer.limit_val_batches (limit_test_batches) is 0 or if the call was stopped. Rank 0 logs the
  // metrics (trainer.enable_model_summary).
  observe::MetricValues validate(Task& task, const data::Dataset& dataset,
                                 const std::string& ckpt = "");
  observe::MetricValues test(Task& task, const data::Dataset& dataset,
                             const std::string& ckpt = "");
  // Returns this rank's part of the predictions, on the host, concatenated along dim 0. The parts
  // of rank 0, rank 1 and so on form the data set's order; gather_predictions() joins them.
  // Undefined on a rank without samples.
  at::Tensor predict(Task& task, const data::Dataset& dataset, const std::string& ckpt = "");

  // The same with the data of a DataModule, which is prepared before the call and torn down after
  // it.
  observe::RunSummary fit(Task& task, DataModule& data);
  observe::MetricValues validate(Task& task, DataModule& data, const std::string& ckpt = "");
  observe::MetricValues test(Task& task, DataModule& data, const std::string& ckpt = "");
  at::Tensor predict(Task& task, DataModule& data, const std::string& ckpt = "");

  // Writes a checkpoint folder at `path` and returns its absolute path. Called by all ranks, which
  // share the file system and use rank 0's `path`; blocks.
  //
  // After fit(), the checkpoint holds the final state of the latest fit(). From a hook of fit(), it
  // holds the state after all callbacks had the hooks of the current micro-batch (and of the
  // validation that follows it), validation or epoch; the call then returns before the checkpoint
  // is written. trainer.ckpt_path resumes from the checkpoint unless `weights_only`. An existing
  // checkpoint at `path` is replaced. The links "last" and "best" stay, and checkpoint.save_top_k
  // never removes this checkpoint. Until the next fit(), the optimizer's states stay in memory.
  //
  // Throws Error(usage) before the first fit(), in on_exception, after a fit() that failed, if
  // `path` exists and is no checkpoint, and if the module's weights were replaced since fit(), for
  // example by test() with a checkpoint.
  std::filesystem::path save_checkpoint(const std::filesystem::path& path,
                                        bool weights_only = false) const;

  // Adds a callback to every later call, after the callbacks added before. In fit(), the callbacks
  // that the options configure come first.
  void add(std::shared_ptr<Callback> callback) { callbacks_.push_back(std::move(callback)); }

  // Sets a function that is asked about once a second, between micro-batches and between batches of
  // evaluations. When all ranks agree to stop, fit() saves a checkpoint and returns with the status
  // "stopped" in the summary. A validation interrupted in this way starts again when the run
  // resumes. validate(), test() and predict() then return empty metrics or an undefined tensor.
  void ask_to_stop(StopQuestion question) { question_ = std::move(question); }
  // Handles signals as `troika train` does, from this call until the Trainer is destroyed. SIGTERM
  // and SIGINT make every call save and end; a second Ctrl-C ends the process. SIGUSR1 does the
  // same, and rank 0 then requeues a Slurm job that may be requeued. When Slurm, torchrun or troika
  // launch has restarted the process, fit() resumes from the run's last checkpoint. After a signal
  // has ended a call, later calls of validate(), test() and predict() return empty results at once,
  // and exit_code() keeps its value.
  //
  // To be called on all ranks, by at most one Trainer of a process at a time, which must have no
  // other question. Replaces the question of ask_to_stop(). `caught` has caught the signals since
  // before the group was made; null: signals are caught from now on.
  void stop_on_signals(std::shared_ptr<const cluster::StopSignals> caught = nullptr);
  // The exit code for main(): 0 if the latest call completed, 6 if it saved and stopped, 5 if the
  // job was requeued.
  int exit_code() const;

  // Makes fit() of strategy ft_ddp or diloco train at this place among the replicas. Without it,
  // fit() takes the place that a launcher gave this process.
  void take_part(std::shared_ptr<QuorumRun> quorum) { quorum_ = std::move(quorum); }
  // Makes the next fit() of strategy swarm train as this peer. Without it, fit() makes a peer of
  // the options.
  void take_part(std::shared_ptr<parallel::SwarmMember> swarm) { swarm_ = std::move(swarm); }
  // Gives the next fit() the result of check_memory_of(); otherwise fit() calls check_memory_of()
  // itself.
  void expect_memory(MemoryOutlook outlook) { memory_ = std::move(outlook); }
  // The request that ended the latest call; `none` if the call completed.
  cluster::StopRequest stopped_by() const { return stopped_by_; }

  // The folder of the latest fit(), or run_folder() of the options before the first fit().
  std::filesystem::path folder() const;

 private:
  // Claims the folder of a fit(), which then calls fit_claimed().
  RunFolder begin_run();
  observe::RunSummary fit_claimed(Task& task, const data::Dataset& training,
                                  const data::Dataset& validation);
  // Runs fit() of strategies downpour and sandblaster on this rank: in a Trainer of its own, on
  // this replica's samples.
  observe::RunSummary fit_replica(Task& task, const data::Dataset& training,
                                  const data::Dataset& validation);
  // Implements validate(), test() and predict(): calls `body` with a loop over the data set, unless
  // the limits of the options leave no batches.
  template <typename Body>
  void evaluate(RunMode mode, Task& task, const data::Dataset& dataset, const std::string& ckpt,
                const Body& body);
  observe::MetricValues metrics(RunMode mode, Task& task, const data::Dataset& dataset,
                                const std::string& ckpt);
  void load_weights(RunMode mode, Task& task, const std::string& ckpt) const;

  // Prepares the data, calls `body`, and tears the data down even if `body` throws.
  template <typename Body>
  auto with(DataModule& data, RunMode mode, const Body& body);

  TrainOptions options_;
  const std::string asked_name_;      // the run.name that was given
  std::optional<RunFolder> claimed_;  // for the first fit()
  comm::Group group_;
  // Not null: this run is that of one of several replicas, which train by themselves.
  std::shared_ptr<const ReplicaRun> replica_;
  std::shared_ptr<QuorumRun> quorum_;             // of replicas that may be lost
  std::shared_ptr<parallel::SwarmMember> swarm_;  // of the next fit() of a swarm
  Callbacks callbacks_;
  StopQuestion question_;
  std::shared_ptr<const cluster::StopSignals> signals_;
  // Implements save_checkpoint(); empty if there is no run to save.
  std::function<std::filesystem::path(const std::filesystem::path&, bool)> save_;
  std::optional<MemoryOutlook> memory_;  // of the next fit()
  cluster::StopRequest stopped_by_ = cluster::StopRequest::none;
};

// Returns the predictions of all ranks on rank 0, in the data set's order. Undefined on other
// ranks, and if there are no predictions. `share` is the result of predict(). Called by all ranks;
// blocks. Throws Error(usage) unless the predictions of all samples have the same type and shape.
at::Tensor gather_predictions(const comm::Group& group, const at::Tensor& share);

// Returns the checkpoint or file of weights that `ckpt` names for validate(), test() or predict()
// of the run in `folder`. Throws Error(usage) if find_checkpoint() does, or if there is none.
std::filesystem::path checkpoint_to_judge(RunMode mode, const std::filesystem::path& folder,
                                          const std::string& ckpt);

}  // namespace troika::train
