// Visits the parameters, buffers and submodules of LibTorch's modules in place; Module's own lists
// copy every name.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::nn {
class Module;
}

namespace troika::compat {

struct ModuleMember {
  const torch::nn::Module& module;  // the module in which it is registered
  const at::Tensor& tensor;  // shares memory with the module's; undefined e.g. for the bias of a
                             // layer without one
  bool is_buffer;
};

// Calls `visit` with every parameter, then every buffer of the module, then does the same for its
// children in turn. A tied member is visited once for each name. Allocates no memory.
void for_each_member(const torch::nn::Module& module,
                     const std::function<void(const ModuleMember&)>& visit);

}  // namespace troika::compat
