// The changes that a run makes to its task's module for its own duration.
#pragma once

#include <optional>

#include "troika/parallel/sync_batch_norm.h"
#include "troika/train/loop/run_setup.h"

namespace troika::train {

class [[nodiscard]] ScopedModuleChanges {
 public:
  // Makes batch norm span the ranks of the data axis, in a pipeline the replicas of a stage, if
  // trainer.sync_batchnorm is set. Called by all ranks; blocks. The task must outlive this object.
  // Adds the terms of trainer.label_smoothing and trainer.z_loss to the task's loss.
  explicit ScopedModuleChanges(const RunSetup& setup) : task_(setup.task) {
    task_.use_loss_terms(setup.options.trainer.loss_terms);
    if (setup.options.trainer.sync_batchnorm) {
      spanning_batch_norm_.emplace(task_.module(), setup.groups.data());
    }
  }
  // Restores the module's own batch norm and the task's own loss. The task's steps no longer log.
  ~ScopedModuleChanges() {
    task_.log_to(nullptr, 1);
    task_.use_loss_terms({});
  }
  ScopedModuleChanges(const ScopedModuleChanges&) = delete;
  ScopedModuleChanges& operator=(const ScopedModuleChanges&) = delete;

 private:
  Task& task_;
  std::optional<parallel::ScopedSyncBatchNorm> spanning_batch_norm_;
};

}  // namespace troika::train
