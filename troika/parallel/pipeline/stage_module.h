// The parameters and buffers of one stage as a module.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "troika/nn/model.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// Returns a module with the parameters and buffers that blocks [begin, end) own or borrow, except
// the names in `without`: the same tensors, under the names that they have in the model. The module
// has no forward pass. Exchanges and optimizers use it to reach a stage's parameters.
std::shared_ptr<torch::nn::Module> stage_module(const nn::Model& model, size_t begin, size_t end,
                                                const std::set<std::string>& without = {});

}  // namespace troika::parallel
