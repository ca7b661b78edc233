// Parameters and buffers of a part of a model as a module.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "troika/nn/model.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// Returns the names of the parameters and buffers that blocks [begin, end) own or borrow.
std::set<std::string> tensors_of_blocks(const nn::Model& model, size_t begin, size_t end);

// Returns a module with these parameters and buffers of the model: the same tensors, under the same
// names. The module has no forward pass. Exchanges and optimizers use it to reach the tensors.
std::shared_ptr<torch::nn::Module> module_of(const nn::Model& model,
                                             const std::set<std::string>& names);

}  // namespace troika::parallel
