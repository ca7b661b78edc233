// The folder that a run writes to: which one it is, and that no other run writes there.
#pragma once

#include <memory>

#include "troika/comm/group.h"
#include "troika/train/options/options.h"

namespace troika::train {

// The claim of a process on a run's folder. It is a lock (flock) on `.lock` in the folder, held by
// all copies of this object and released by the end of the process, however it ends.
class RunFolder {
 public:
  // Decides where the run goes, creates the folder and locks it:
  // - run.folder/run.name, if no run has left results there;
  // - the same folder, if the run goes on: trainer.ckpt_path is "last", "best" or a checkpoint of
  //   that run, wherever it is; and with run.overwrite;
  // - else run.folder/run.name-N with a new N >= 2, which is logged.
  // With `goes_on_when_started_again`, a process that Slurm, torchrun or `troika launch` has
  // started again takes the folder that its job had before, and goes on from the last checkpoint
  // there, if it has saved one.
  // Sets run.name, and trainer.ckpt_path where that changes, to what was decided; model.weights
  // that is "last" or "best" becomes the path of that checkpoint of the run that was asked for.
  // Removes what describes the state before this start (summary.json, trace.json, report.html). In
  // a process that `troika train` has started, the folder is that of the parent, which holds the
  // lock. Throws Error(usage) where run_folder() does, and where the folder to go on in is locked.
  static RunFolder claim(TrainOptions& options, bool goes_on_when_started_again);

  // The same for the ranks of a group, which all call it and take rank 0's decision. Rank 0 holds
  // the lock. Blocks.
  static RunFolder claim(TrainOptions& options, const comm::Group& group,
                         bool goes_on_when_started_again);

  // From now on processes that this one starts take the folder of these options for claimed.
  static void hand_down(const TrainOptions& options);

 private:
  std::shared_ptr<const void> lock_;
};

}  // namespace troika::train
