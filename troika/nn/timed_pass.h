// Timing of forward and backward passes of a temporary model.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <memory>

#include "troika/nn/precision.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

// A new model and a batch for it, on the CPU. Takes the memory of a training step without an
// optimizer. Draws from LibTorch's default generator; the destructor restores the generator's
// state.
class TimedPass {
 public:
  TimedPass(const ModelOptions& options, int64_t batch, const NumericPrecision& precision);
  ~TimedPass();
  TimedPass(const TimedPass&) = delete;
  TimedPass& operator=(const TimedPass&) = delete;

  // Returns the seconds of a forward and backward pass with images and convolution weights in this
  // format, with this thread's number of threads. A model with an output layer computes its loss,
  // as in training.
  double seconds(at::MemoryFormat format = at::MemoryFormat::Contiguous);

 private:
  const at::Tensor random_;  // the generator's state
  const NumericPrecision precision_;
  const std::shared_ptr<Model> model_;
  const Tensors inputs_;
};

}  // namespace troika::nn
