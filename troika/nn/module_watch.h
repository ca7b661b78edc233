// Detects changes of a module's parameters and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace troika::nn {

// Remembers the tensors of a module. A comparison takes about 20 instructions per tensor and no
// memory, so it can run in every step.
class ModuleWatch {
 public:
  // `module` must outlive this object.
  explicit ModuleWatch(const torch::nn::Module& module);

  // Returns false once parameters or buffers were added, replaced or removed, or a parameter was
  // frozen, unfrozen, cast or moved to another device. Changes of values do not count.
  bool is_unchanged() const;

  // The buffers at construction, in the order of Module::buffers().
  const std::vector<at::Tensor>& buffers() const { return buffers_; }

 private:
  struct Entry {
    const void* tensor;
    bool requires_grad;
    c10::ScalarType type;
    c10::Device device;

    bool operator==(const Entry&) const = default;
  };
  static Entry entry_of(const at::Tensor& tensor);

  const torch::nn::Module* module_;
  std::vector<Entry> entries_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace troika::nn
