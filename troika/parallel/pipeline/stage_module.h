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

// Returns a module with the parameters and buffers that blocks [begin, end) own or borrow, the same
// tensors under the names they have in the model, without those in `without`. It has no forward
// pass: gradients are averaged and parameters are stepped through it.
std::shared_ptr<torch::nn::Module> stage_module(const nn::Model& model, size_t begin, size_t end,
                                                const std::set<std::string>& without = {});

}  // namespace troika::parallel
