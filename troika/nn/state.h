// The tensors of a module by name: the order and the names of PyTorch's `state_dict`.
#pragma once

#include <cstdint>

#include "troika/state/state_dict.h"

namespace torch::nn {
class Module;
}

namespace troika::nn {

enum class Ties { once, every_name };

// All parameters and buffers as "layer1.0.conv1.weight"; the tensors share their memory with the
// module. Buffers are batch-norm statistics and the like: without gradients, still saved. Each
// module's parameters before its buffers and both before its children. With Ties::once a tensor
// registered under several names appears under the first only; torch::nn::Module::parameters()
// would give it to an optimizer once for each name. Undefined entries (a layer without bias) are
// left out. The module may live on the stack.
state::StateDict named_state(const torch::nn::Module& module, Ties ties = Ties::once);
// The parameters alone, and the buffers alone, of named_state() with Ties::once.
state::StateDict named_parameters(const torch::nn::Module& module);
state::StateDict named_buffers(const torch::nn::Module& module);

// The parameters that require a gradient, in the order of named_state, a tied one once: what an
// optimizer steps and data parallelism averages.
state::StateDict trained_parameters(const torch::nn::Module& module);

// Scalars in all parameters, tied ones counted once, buffers not: the number papers print.
int64_t parameter_count(const torch::nn::Module& module);

}  // namespace troika::nn
