// The interface between a training loop and the replicas of a module on the ranks.
#pragma once

#include <string>

#include "troika/optim/flat_optimizer.h"
#include "troika/parallel/gradient_sync.h"
#include "troika/parallel/parameter_store.h"

namespace troika::parallel {

// Averages gradients and owns parameters. Has state of its own, beside that of the module and the
// optimizer, on which the next step depends.
class Exchange : public GradientSync, public ParameterStore {
 public:
  // Returns this rank's part of this object's own state, for a checkpoint. Must be called outside
  // of a step. Tensors may share memory with this object: save or copy them before the next step.
  virtual optim::NamedTensors state() const = 0;
  // Copies the saved state into this object. The module must already hold the parameters that it
  // had when the state was saved. Called by all ranks. Throws Error(usage) naming a tensor that is
  // missing, unknown or of the wrong shape.
  virtual void load_state(const optim::NamedTensors& state) = 0;

 protected:
  // The name in state() of the order of parameters in a DataParallel's buckets.
  static constexpr const char* kBucketOrder = "bucket_order";

  // Throws Error(usage) for a tensor of load_state() that is unknown, missing or has a wrong value.
  // `name` is its name.
  [[noreturn]] static void refuse_state(const std::string& name);
};

}  // namespace troika::parallel
