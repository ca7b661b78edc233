// Chooses the folder of a run, and locks it against other runs.
#pragma once

#include <memory>

#include "troika/comm/group.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Owns the lock (flock) of a run's folder, on `.lock` in the folder. The lock is shared by all
// copies of this object and released at the latest by the exit of the process.
class RunFolder {
 public:
  // Chooses the folder of the run, creates it and locks it:
  // - run.folder/run.name, if it has no results of a run;
  // - the same folder with run.overwrite, or if the run resumes there: trainer.ckpt_path is "last",
  //   "best" or a checkpoint of that run, even one in another folder;
  // - otherwise run.folder/run.name-N with a new N >= 2, which is logged.
  // With `goes_on_when_started_again`, a process that Slurm, torchrun or `troika launch` has
  // restarted uses the folder of its job's earlier attempt, and resumes from the last checkpoint in
  // that folder, if any.
  //
  // Sets run.name and trainer.ckpt_path to the choice. A weights.path of "last" or "best" becomes
  // the path of that checkpoint of the run named by the original run.name. Removes summary.json,
  // trace.json and report.html, which describe an earlier state. In a process that `troika train`
  // has started, the folder is the parent's, and the parent holds the lock. Throws Error(usage) if
  // run_folder() does, and if the folder to resume in is locked.
  static RunFolder claim(TrainOptions& options, bool goes_on_when_started_again);

  // The same for the ranks of a group: all ranks call it and take rank 0's choice. Rank 0 holds the
  // lock. Blocks.
  static RunFolder claim(TrainOptions& options, const comm::Group& group,
                         bool goes_on_when_started_again);

  // Makes child processes treat the folder of these options as already claimed.
  static void claim_for_children(const TrainOptions& options);

 private:
  std::shared_ptr<const void> lock_;
};

}  // namespace troika::train
