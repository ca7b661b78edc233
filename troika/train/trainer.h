// The loops around data parallelism: training with exact validation, logs, checkpoints and summary;
// tests; predictions.
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

namespace troika::train {

// Trains a task on the ranks of a group, each calling the same. Rank 0 writes, into the folder that
// RunFolder::claim() decides on: config.toml, metrics.csv, TensorBoard events and summary.json. All
// ranks write checkpoints there; a run with trainer.ckpt_path goes on from one as if it had never
// ended, to the bit on as many ranks as before.
//
// Step k of an epoch trains on the k-th global batch of the sampler, so the course of a run does
// not depend on the number of ranks that share a global batch (up to rounding, and up to batch-norm
// statistics, which each rank takes over its own share unless trainer.sync_batchnorm is set).
// Validation counts every sample once.
class Trainer {
 public:
  // Throws Error(usage) where the options ask for another group than this one
  // (require_group_of()); world_options() makes what they ask for. `claimed`: the folder of these
  // options, where it is claimed already; the first fit() then does not do that.
  Trainer(TrainOptions options, comm::Group group, std::optional<RunFolder> claimed = {});

  // Blocks until done. The data sets must hold what the task's module takes; the module's
  // parameters become rank 0's. Rank 0 logs what the run is about to do and what came of it
  // (trainer.enable_model_summary). Throws what the task, the data or the group throw, but an error
  // of LibTorch as Error(failure), with LibTorch's nested in it; the summary then says "failed" and
  // why, without numbers where nothing was trained. Locks the run's folder until the end
  // of the call. Every fit() that goes on from no checkpoint of its run is a run with a folder of
  // its own.
  observe::RunSummary fit(Task& task, const data::Dataset& training,
                          const data::Dataset& validation);

  // One pass each over a data set, in which every sample counts once whatever the number of ranks:
  // without gradients, in evaluation mode, and with what trainer.precision and memory_format say.
  // Nothing is written but a profile. `ckpt` says which weights: empty for those of the module,
  // else those that find_checkpoint() finds on rank 0: "last" or "best" of this run, the folder of
  // another run or of a checkpoint, a file. All ranks get rank 0's, and keep them. Hooks are those
  // of the callbacks that were added, not of those that the options make fit() use, and of the
  // task. Throws Error(usage) where there is no such checkpoint.
  //
  // The metrics, as fit() names and logs them: "validation/loss" and "validation/accuracy", or
  // "test/loss" and "test/accuracy", and then what the steps logged, of which numbers without
  // sync_dist are each rank's own. Empty where trainer.limit_val_batches (limit_test_batches) is 0,
  // and where it was asked to stop. Rank 0 logs them (trainer.enable_model_summary).
  observe::MetricValues validate(Task& task, const data::Dataset& dataset,
                                 const std::string& ckpt = "");
  observe::MetricValues test(Task& task, const data::Dataset& dataset,
                             const std::string& ckpt = "");
  // This rank's share of the predictions, on the host and one after another along dim 0: those of
  // rank 0, of rank 1 and so on are together in the data set's order, as gather_predictions() gives
  // them. Undefined for a rank without samples.
  at::Tensor predict(Task& task, const data::Dataset& dataset, const std::string& ckpt = "");

  // The same with the data of a module, which is prepared before and torn down after.
  observe::RunSummary fit(Task& task, DataModule& data);
  observe::MetricValues validate(Task& task, DataModule& data, const std::string& ckpt = "");
  observe::MetricValues test(Task& task, DataModule& data, const std::string& ckpt = "");
  at::Tensor predict(Task& task, DataModule& data, const std::string& ckpt = "");

  // Writes a checkpoint, a folder, as `path`: of the latest fit() as it stood at its end, or, from
  // a hook of fit(), of the run as it stands once all callbacks have had the hooks of the pass
  // (with the validation that follows it), the validation or the epoch that is on. From such a hook
  // it returns before the checkpoint is written. A run goes on from it with trainer.ckpt_path,
  // unless `weights_only`. A checkpoint that is there is replaced; no link moves, and
  // checkpoint.save_top_k never removes it. Called by all ranks, which share the folder and take
  // rank 0's `path`; blocks. Returns the absolute path. Throws Error(usage) before a fit(), in
  // on_exception and after a fit() that failed, where `path` is something else than a checkpoint,
  // and after a fit() once the module has other weights than that left, as those of a checkpoint
  // that test() has loaded. Until the next fit() this keeps the optimizer's states in memory.
  std::filesystem::path save_checkpoint(const std::filesystem::path& path,
                                        bool weights_only = false) const;

  // Accompanies every call from now on, after those that were added before. In fit(), callbacks
  // that the options ask for come first.
  void add(std::shared_ptr<Callback> callback) { callbacks_.push_back(std::move(callback)); }

  // Asked between passes and between batches of evaluations, about once a second. When all ranks
  // agree to end, fit() saves and returns; the summary then says "stopped". A validation that is
  // cut short so is made anew when the run goes on. validate(), test() and predict() return nothing
  // then: no metrics, an undefined tensor.
  void ask_to_stop(StopQuestion question) { question_ = std::move(question); }
  // Does what `troika train` does when its job is signalled. From now until the end of this object,
  // SIGTERM and SIGINT (Ctrl-C; a second one ends the process) ask every call to save and end, and
  // so does SIGUSR1, after which rank 0 puts a Slurm job that may be requeued back into the queue.
  // When Slurm, torchrun or troika launch has started the process again, fit() goes on from the
  // run's last checkpoint. Once a signal has ended a call, validate(), test() and predict() return
  // nothing at once, and exit_code() stays. To be called on all ranks, by one trainer of a process
  // at a time, which has no other question. Ranks learn of the signal as ask_to_stop() says.
  // `caught`: what has caught them since before the group was made, if anything has.
  void stop_on_signals(std::shared_ptr<const cluster::StopSignals> caught = nullptr);
  // For the end of main(): 0 when the latest call was done, 6 when it saved and stopped, 5 when the
  // job is in the queue again.
  int exit_code() const;

  // What check_memory_of() said of the run; without it fit() asks that itself.
  void expect_memory(MemoryOutlook outlook) { memory_ = std::move(outlook); }
  // The request that ended the latest call: `none` when it was done.
  cluster::StopRequest stopped_by() const { return stopped_by_; }

  // The folder of the latest fit(); before it, run_folder() of the options.
  std::filesystem::path folder() const;

 private:
  // Claims the folder of a fit(), whose body follows.
  RunFolder begin_run();
  observe::RunSummary fit_claimed(Task& task, const data::Dataset& training,
                                  const data::Dataset& validation);
  // Serves validate(), test() and predict(): calls `body` with a loop over the data set, unless
  // that is limited to nothing.
  template <typename Body>
  void evaluate(RunMode mode, Task& task, const data::Dataset& dataset, const std::string& ckpt,
                const Body& body);
  observe::MetricValues metrics(RunMode mode, Task& task, const data::Dataset& dataset,
                                const std::string& ckpt);
  void load_weights(RunMode mode, Task& task, const std::string& ckpt) const;

  // Prepares the data, calls `body`, and tears the data down whatever `body` throws.
  template <typename Body>
  auto with(DataModule& data, RunMode mode, const Body& body);

  TrainOptions options_;
  const std::string asked_name_;      // run.name as it was given
  std::optional<RunFolder> claimed_;  // for the first fit()
  comm::Group group_;
  Callbacks callbacks_;
  StopQuestion question_;
  std::shared_ptr<const cluster::StopSignals> signals_;
  // The function that save_checkpoint() calls; none where there is no run to save.
  std::function<std::filesystem::path(const std::filesystem::path&, bool)> save_;
  std::optional<MemoryOutlook> memory_;  // of the next fit()
  cluster::StopRequest stopped_by_ = cluster::StopRequest::none;
};

// On rank 0 the predictions of all ranks, in the data set's order; undefined elsewhere, and where
// there are none. Called by all ranks; blocks. Throws Error(usage) unless those of all samples have
// one type and shape.
at::Tensor gather_predictions(const comm::Group& group, const at::Tensor& share);

// The checkpoint or file of weights that `ckpt` means to validate(), test() or predict() of the
// run in `folder`. Throws Error(usage) where find_checkpoint() does and where there is none.
std::filesystem::path checkpoint_to_judge(RunMode mode, const std::filesystem::path& folder,
                                          const std::string& ckpt);

}  // namespace troika::train
