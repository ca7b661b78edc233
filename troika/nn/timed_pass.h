// Forward and backward passes of a model of its own, to be timed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <memory>

#include "troika/nn/precision.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

// A fresh model and a batch for it, on the CPU. Takes the memory of a training step without an
// optimizer. Draws from LibTorch's default generator, which the destructor sets back to where the
// constructor found it.
class TimedPass {
 public:
  TimedPass(const ModelOptions& options, int64_t batch, const Precision& precision);
  ~TimedPass();
  TimedPass(const TimedPass&) = delete;
  TimedPass& operator=(const TimedPass&) = delete;

  // Seconds of a pass with images and weights of convolutions in this format, in this thread's
  // number of threads. A model of many classes is asked for its loss, as in training.
  double seconds(at::MemoryFormat format = at::MemoryFormat::Contiguous);

 private:
  const at::Tensor random_;  // the generator's state
  const Precision precision_;
  const std::shared_ptr<Model> model_;
  const at::Tensor inputs_;
};

}  // namespace troika::nn
