// Runs a task's steps without training.
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/data/batch.h"
#include "troika/train/engine/placement.h"
#include "troika/train/options/run_mode.h"

namespace troika::train {

struct Evaluation;
class Task;

// Called in evaluation mode and without gradients. Not thread-safe. Rethrows errors of LibTorch in
// the task's steps unchanged.
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // The device, number type and memory order of the computation.
  virtual const Placement& placement() const = 0;
  // Adds a batch, as the data set gives it, to `sums`: validation_step(), or test_step() with
  // RunMode::test.
  virtual void evaluate(RunMode mode, const data::Batch& batch, Evaluation& sums) = 0;
  // Returns the predictions for a batch.
  virtual at::Tensor predict(const data::Batch& batch) = 0;
};

// Runs the steps of a task on a rank that has the whole model.
class WholeModelEvaluator : public Evaluator {
 public:
  // `task` must outlive this object.
  WholeModelEvaluator(Task& task, const Placement& placement)
      : task_(task), placement_(placement) {}

  const Placement& placement() const override { return placement_; }
  void evaluate(RunMode mode, const data::Batch& batch, Evaluation& sums) override;
  at::Tensor predict(const data::Batch& batch) override;

 private:
  Task& task_;
  const Placement placement_;
};

}  // namespace troika::train
