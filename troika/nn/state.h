// The tensors of a module by name: the order and the names of PyTorch's `state_dict`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troika::nn {

// One parameter or buffer; the tensor shares its memory with the module.
struct StateTensor {
  std::string name;  // "layer1.0.conv1.weight"
  at::Tensor tensor;
  bool is_buffer = false;  // batch-norm statistics and the like: no gradient, still saved
};

enum class Ties { once, every_name };

// All parameters and buffers, each module's parameters before its buffers and both before its
// children. With Ties::once a tensor registered under several names appears under the first only;
// torch::nn::Module::parameters() would give it to an optimizer once for each name. Undefined
// entries (a layer without bias) are left out. The module may live on the stack.
std::vector<StateTensor> named_state(const torch::nn::Module& module, Ties ties = Ties::once);

// The parameters that require a gradient, in the order of named_state, a tied one once: what an
// optimizer steps and data parallelism averages.
std::vector<StateTensor> trained_parameters(const torch::nn::Module& module);

// Scalars in all parameters, tied ones counted once, buffers not: the number papers print.
int64_t parameter_count(const torch::nn::Module& module);

}  // namespace troika::nn
