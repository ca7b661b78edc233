// Runs the operators of the pretend device: by the CPU's kernels, later, on the device's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tests/pretend_device/memory.h"

namespace troika::pretend {

inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::kPrivateUse1;
}

// Describes a tensor without owning its memory, because queued work must not keep device memory
// allocated.
class View {
 public:
  explicit View(const at::Tensor& tensor);
  // Returns the same elements as a CPU tensor. Call it only inside running work.
  at::Tensor in_operator() const;
  // Returns a tensor of zeros with the same sizes, strides and type.
  at::Tensor zeros() const;
  Access access(bool writes) const;

 private:
  const char* address_;
  std::vector<int64_t> sizes_, strides_;
  at::ScalarType type_;
  bool is_number_;
};

// Returns a tensor of uninitialised memory on `device`, or on the current device.
at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                 c10::Device device);

// Queues `run` on the current stream of the tensors' device.
void run_late(const std::string& name, const std::vector<at::Tensor>& reads,
              const std::vector<at::Tensor>& writes, std::function<void()> run);

}  // namespace troika::pretend
