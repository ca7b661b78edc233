// Runs the operators of the pretend device: by the CPU's kernels, later, on the device's memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <string>
#include <vector>

#include "tests/pretend_device/memory.h"
#include "troika/compat/torch.h"

namespace troika::pretend {

// The key of autocast for tensors of the device. LibTorch 1.13 has none for PrivateUse1, but knows
// that of XPU, for which it has no kernels (compat/autocast.h).
#if TROIKA_TORCH_VERSION >= 204
inline constexpr auto kAutocastKey = c10::DispatchKey::AutocastPrivateUse1;
#else
inline constexpr auto kAutocastKey = c10::DispatchKey::AutocastXPU;
#endif
inline constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1, kAutocastKey};

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
