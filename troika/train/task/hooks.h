// The hooks that a run calls on every callback and then on the task. Names, places and order are
// Lightning's.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>

namespace troika::data {
struct Batch;
}

namespace troika::train {

struct FitContext;

// All ranks call the same hooks in the same order, so a hook may use the context's group if it does
// so on all ranks. An exception of a hook ends the run.
class Hooks {
 public:
  virtual ~Hooks() = default;

  // Trainer::fit() calls all hooks except those of tests and predictions. validate(), test() and
  // predict() call only the hooks of their names.

  // Called once in each Trainer::fit(), after it loaded a checkpoint to resume from.
  virtual void on_fit_start(FitContext&) {}
  virtual void on_train_start(FitContext&) {}
  virtual void on_train_end(FitContext&) {}
  virtual void on_fit_end(FitContext&) {}
  // Not called for an epoch in whose middle a run resumes.
  virtual void on_train_epoch_start(FitContext&) {}
  // Called after a validation that is due at the epoch's end. Numbers logged here still belong to
  // the epoch. A callback that monitors() is called after the epoch's numbers were reduced.
  virtual void on_train_epoch_end(FitContext&) {}
  // A training batch is one micro-batch; accumulate_grad_batches of them make an optimizer step.
  virtual void on_train_batch_start(FitContext&, const data::Batch&) {}
  // `loss` has one element, on the compute device, without a graph. Reading it on a GPU waits for
  // the GPU.
  virtual void on_train_batch_end(FitContext&, const data::Batch&, const at::Tensor& /*loss*/) {}
  // Gradients are synchronized among ranks (with ZeRO, each rank has its own shards), not yet
  // clipped, and still multiplied by the loss scale if there is one.
  virtual void on_before_optimizer_step(FitContext&) {}
  // The hooks of validations, tests and predictions run in evaluation mode and without gradients.
  virtual void on_validation_start(FitContext&) {}
  virtual void on_validation_epoch_start(FitContext&) {}
  virtual void on_validation_batch_start(FitContext&, const data::Batch&) {}
  virtual void on_validation_batch_end(FitContext&, const data::Batch&) {}
  // The last hook that may log numbers of the validation.
  virtual void on_validation_epoch_end(FitContext&) {}
  // Called after all logged numbers were reduced.
  virtual void on_validation_end(FitContext&) {}
  // Called in place of the two hooks above if the run was asked to stop between two batches. A
  // resumed run starts this validation again.
  virtual void on_validation_interrupted(FitContext&) {}
  // The hooks of a test match those of a validation.
  virtual void on_test_start(FitContext&) {}
  virtual void on_test_epoch_start(FitContext&) {}
  virtual void on_test_batch_start(FitContext&, const data::Batch&) {}
  virtual void on_test_batch_end(FitContext&, const data::Batch&) {}
  virtual void on_test_epoch_end(FitContext&) {}
  virtual void on_test_end(FitContext&) {}
  virtual void on_predict_start(FitContext&) {}
  virtual void on_predict_epoch_start(FitContext&) {}
  virtual void on_predict_batch_start(FitContext&, const data::Batch&) {}
  // `predictions` is the result of predict_step() for the batch, on the host.
  virtual void on_predict_batch_end(FitContext&, const data::Batch&,
                                    const at::Tensor& /*predictions*/) {}
  virtual void on_predict_epoch_end(FitContext&) {}
  virtual void on_predict_end(FitContext&) {}
  // Called on the rank that failed, which must not use the group any more. Other ranks may call it
  // too when they miss the failed rank.
  virtual void on_exception(FitContext&, const std::exception&) {}
};

}  // namespace troika::train
