// Whether a module still is what it was.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace troika::nn {

// Remembers of which tensors a module is made. To compare takes some 20 instructions a tensor and
// no memory, so it can be done in every step.
class ModuleWatch {
 public:
  // `module` must outlive this object.
  explicit ModuleWatch(const torch::nn::Module& module);

  // False once parameters or buffers were added, replaced or removed, or a parameter was frozen,
  // unfrozen, cast or moved to another device. Values do not count.
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
