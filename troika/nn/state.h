// The tensors of a module by name, in the order and with the names of PyTorch's `state_dict`.
#pragma once

#include <cstdint>

#include "troika/state/state_dict.h"

namespace torch::nn {
class Module;
}

namespace troika::nn {

enum class Ties { once, every_name };

// Returns all parameters and buffers as "layer1.0.conv1.weight"; the tensors share their memory
// with the module. Buffers are saved tensors without gradients, such as batch-norm statistics. Each
// module's parameters come before its buffers, and both come before its children. With Ties::once a
// tensor registered under several names appears only under the first;
// torch::nn::Module::parameters() would give it to an optimizer once per name. Undefined entries (a
// layer without bias) are left out. The module may be on the stack.
state::StateDict named_state(const torch::nn::Module& module, Ties ties = Ties::once);
// Return only the parameters, and only the buffers, of named_state() with Ties::once.
state::StateDict named_parameters(const torch::nn::Module& module);
state::StateDict named_buffers(const torch::nn::Module& module);

// Returns the parameters that require a gradient, in the order of named_state. A tied parameter
// appears once. Optimizers step these and data parallelism averages their gradients.
state::StateDict trained_parameters(const torch::nn::Module& module);

// Returns the number of scalars in all parameters, tied ones counted once, without buffers: the
// number that papers report.
int64_t parameter_count(const torch::nn::Module& module);

}  // namespace troika::nn
