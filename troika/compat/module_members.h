// The parameters, buffers and submodules of LibTorch's modules, where they hold them: Module's own
// lists copy every name.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::nn {
class Module;
}

namespace troika::compat {

struct ModuleMember {
  const torch::nn::Module& module;  // that it is registered in, under some name
  const at::Tensor& tensor;         // shared with it; undefined for a layer without bias
  bool is_buffer;
};

// Calls `visit` with every parameter, then every buffer of the module, and does the same for its
// children in turn: a tied one once for each name. Takes no memory.
void for_each_member(const torch::nn::Module& module,
                     const std::function<void(const ModuleMember&)>& visit);

}  // namespace troika::compat
