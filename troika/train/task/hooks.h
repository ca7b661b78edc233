// Hooks that a run calls on every callback, then on the task. Names, places and order are
// those of Lightning.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>

namespace troika::data {
struct Batch;
}

namespace troika::train {

struct FitContext;

// All ranks call the same hooks in the same order, so a hook may use the context's group, as long
// as it does so on all of them. What a hook throws ends the run.
class Hooks {
 public:
  virtual ~Hooks() = default;

  // Trainer::fit() calls all but those of tests and predictions; validate(), test() and predict()
  // call the ones of their names alone.

  // Once a call of Trainer::fit(), after a checkpoint to go on from was loaded.
  virtual void on_fit_start(FitContext&) {}
  virtual void on_train_start(FitContext&) {}
  virtual void on_train_end(FitContext&) {}
  virtual void on_fit_end(FitContext&) {}
  // Not called for an epoch that a resumed run goes on with.
  virtual void on_train_epoch_start(FitContext&) {}
  // After a validation that is due then. What is logged here still belongs to the epoch; a callback
  // that monitors() is called after that was reduced.
  virtual void on_train_epoch_end(FitContext&) {}
  // One pass over a batch, of which accumulate_grad_batches make an optimizer step.
  virtual void on_train_batch_start(FitContext&, const data::Batch&) {}
  // The loss has one element, on the device that computes, and no graph. Reading it on a GPU waits
  // for the GPU.
  virtual void on_train_batch_end(FitContext&, const data::Batch&, const at::Tensor& /*loss*/) {}
  // Gradients are those of all ranks (with ZeRO this rank's share of them), before clipping, and
  // multiplied by the loss scale where there is one.
  virtual void on_before_optimizer_step(FitContext&) {}
  // In evaluation mode and without gradients, as are those of tests and predictions.
  virtual void on_validation_start(FitContext&) {}
  virtual void on_validation_epoch_start(FitContext&) {}
  virtual void on_validation_batch_start(FitContext&, const data::Batch&) {}
  virtual void on_validation_batch_end(FitContext&, const data::Batch&) {}
  // The last place to log something of the validation.
  virtual void on_validation_epoch_end(FitContext&) {}
  // All that was logged is reduced.
  virtual void on_validation_end(FitContext&) {}
  // In place of the two before: the run was asked to stop between two batches, and makes the
  // validation anew when it goes on.
  virtual void on_validation_interrupted(FitContext&) {}
  // As those of a validation.
  virtual void on_test_start(FitContext&) {}
  virtual void on_test_epoch_start(FitContext&) {}
  virtual void on_test_batch_start(FitContext&, const data::Batch&) {}
  virtual void on_test_batch_end(FitContext&, const data::Batch&) {}
  virtual void on_test_epoch_end(FitContext&) {}
  virtual void on_test_end(FitContext&) {}
  virtual void on_predict_start(FitContext&) {}
  virtual void on_predict_epoch_start(FitContext&) {}
  virtual void on_predict_batch_start(FitContext&, const data::Batch&) {}
  // `predictions` are what predict_step() gave for the batch, on the host.
  virtual void on_predict_batch_end(FitContext&, const data::Batch&,
                                    const at::Tensor& /*predictions*/) {}
  virtual void on_predict_epoch_end(FitContext&) {}
  virtual void on_predict_end(FitContext&) {}
  // On the rank that failed, which must not use the group any more; others may call it too, as they
  // miss that rank.
  virtual void on_exception(FitContext&, const std::exception&) {}
};

}  // namespace troika::train
