// Runs a task's steps without training.
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/data/batch.h"
#include "troika/train/engine/placement.h"
#include "troika/train/options/run_mode.h"

namespace troika::train {

struct Evaluation;
class Task;

// Not for use by several threads; called without gradients and in evaluation mode. Throws errors of
// LibTorch in the task's step as they are.
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // Where it computes, and in what number type.
  virtual const Placement& placement() const = 0;
  // Adds a batch, as the data set gives it, to the sums of a validation or, with RunMode::test, of
  // a test.
  virtual void evaluate(RunMode mode, const data::Batch& batch, Evaluation& sums) = 0;
  // The predictions for a batch.
  virtual at::Tensor predict(const data::Batch& batch) = 0;
};

// Runs the steps of a task whose whole model this rank has.
class WholeModelEvaluator : public Evaluator {
 public:
  // The task must outlive it.
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
