// Times the passes of a model's blocks with one block in memory at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "troika/data/batch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/parallel/pipeline/stage_passes.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/train/engine/block_times.h"
#include "troika/train/engine/placement.h"

namespace troika::compat {
class DeferredInit;
}

namespace troika::train {

class Task;

// For models that are larger than a rank's memory. Blocks are entered in the order of the model;
// each takes the outputs that the blocks before it have given for the batch, and gets gradients of
// ones. The values of large weights are drawn anew, with the variance of their usual
// initialisation: times do not depend on them. Not thread-safe.
class BlocksApart {
 public:
  // `values` has recorded how the task's module is made and placed, so its large tensors have no
  // memory. `batch` is on the device. All arguments must outlive this object. Throws Error(usage)
  // for a task without blocks (Task::blocks()).
  BlocksApart(Task& task, const compat::DeferredInit& values, const Placement& placement,
              const data::Batch& batch);

  // Gives the next block's weights memory and values, and runs its passes once. Call it size()
  // times, with leave() in between.
  void enter();
  // Runs the passes of the entered block on the batch. The gradients of its weights add up. Returns
  // their seconds.
  double run(Round round);
  // Runs the passes of the entered block and counts its products.
  BlockProducts count_products();
  // Releases the memory of the entered block's weights and gradients.
  void leave();

  size_t size() const { return stages_.size(); }
  // By block; of the blocks that have been entered.
  const std::vector<BlockSeconds>& seconds() const { return seconds_; }

 private:
  // Calls `use` with each tensor of the entered block that `values` had to make.
  void for_large_tensors(const std::function<void(const at::Tensor&)>& use) const;
  nn::Tensors inputs() const;
  nn::Tensors forward();
  bool is_last() const { return next_ + 1 == stages_.size(); }

  Task& task_;
  const compat::DeferredInit& values_;
  const Placement& placement_;
  const data::Batch& batch_;
  const parallel::StagesOfModel stages_;
  const std::shared_ptr<const nn::SampleKeys> keys_;
  size_t next_ = 0;                              // the entered block, or the next one to enter
  std::map<nn::Slot, at::Tensor> tensors_;       // that blocks from next_ on read
  std::optional<parallel::StagePasses> passes_;  // of the entered block
  nn::Tensors outputs_, gradients_;              // of the entered block
  std::vector<BlockSeconds> seconds_;
};

}  // namespace troika::train
