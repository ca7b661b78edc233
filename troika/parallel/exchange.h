// The seam between a training loop and the ranks' replicas of a module.
#pragma once

#include <string>

#include "troika/optim/flat_optimizer.h"
#include "troika/parallel/gradient_sync.h"
#include "troika/parallel/parameter_store.h"

namespace troika::parallel {

// Averages gradients, owns parameters, and keeps what the next step depends on beside the module
// and the optimizer.
class Exchange : public GradientSync, public ParameterStore {
 public:
  // That state of this rank, for a checkpoint; outside of a step. Tensors may share memory with
  // this object: save or copy them before the next step.
  virtual optim::NamedTensors state() const = 0;
  // Takes copies, once the module has the parameters that it had when the state was saved. Called
  // by all ranks. Throws Error(usage) naming what does not belong.
  virtual void load_state(const optim::NamedTensors& state) = 0;

 protected:
  // The name in state() of the order of a DataParallel's buckets.
  static constexpr const char* kBucketOrder = "bucket_order";

  // Throws Error(usage): load_state() knows no tensor of this name, or not of this kind.
  [[noreturn]] static void refuse_state(const std::string& name);
};

}  // namespace troika::parallel
