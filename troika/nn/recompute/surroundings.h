// The state beside its input that a function's result depends on.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "troika/compat/autocast.h"
#include "troika/nn/keyed_draws.h"

namespace troika::nn {

// The state of the random generators of the CPU and of a tensor's device, and this thread's keyed
// draws and autocast, at its construction.
class Surroundings {
 public:
  explicit Surroundings(at::Device device);
  // Calls `work` in this state, with gradients on; afterwards the generators and `buffers` are as
  // they were before the call.
  void restored(const std::vector<at::Tensor>& buffers, const std::function<void()>& work) const;

 private:
  DrawState draws_ = DrawState::current();
  std::vector<std::pair<at::Generator, at::Tensor>> random_;
  std::vector<std::pair<c10::DeviceType, compat::AutocastState>> autocast_;
};

}  // namespace troika::nn
