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
  explicit ScopedModuleChanges(const RunSetup& setup) : task_(setup.task) {
    if (setup.options.trainer.sync_batchnorm) {
      spanning_batch_norm_.emplace(task_.module(), setup.groups.data());
    }
  }
  // Restores the module's own batch norm. The task's steps no longer log.
  ~ScopedModuleChanges() { task_.log_to(nullptr, 1); }
  ScopedModuleChanges(const ScopedModuleChanges&) = delete;
  ScopedModuleChanges& operator=(const ScopedModuleChanges&) = delete;

 private:
  Task& task_;
  std::optional<parallel::ScopedSyncBatchNorm> spanning_batch_norm_;
};

}  // namespace troika::train
