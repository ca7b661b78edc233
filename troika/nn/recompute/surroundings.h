// The state besides its inputs that a function's result depends on.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "troika/compat/autocast.h"
#include "troika/nn/keyed_draws.h"

namespace troika::nn {

// Captures at construction the state of the random generators of the CPU and of `device`, and this
// thread's keyed draws and autocast.
class Surroundings {
 public:
  explicit Surroundings(at::Device device);
  // Calls `work` in this state, with gradients on; then restores the generators and `buffers` to
  // their values before the call.
  void restored(const std::vector<at::Tensor>& buffers, const std::function<void()>& work) const;

 private:
  DrawState draws_ = DrawState::current();
  std::vector<std::pair<at::Generator, at::Tensor>> random_;
  std::vector<std::pair<c10::DeviceType, compat::AutocastState>> autocast_;
};

}  // namespace troika::nn
