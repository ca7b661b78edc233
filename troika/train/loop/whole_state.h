// The whole model of a run whose ranks hold parts of it.
#pragma once

#include <set>
#include <string>

#include "troika/checkpoint/safetensors.h"
#include "troika/comm/group.h"

namespace torch::nn {
class Module;
}

namespace troika::train {

// Returns, on rank 0, the module's parameters and buffers: its own ones, which share memory with
// the module, and copies of those that it does not hold. `own` are the names of the tensors that
// this rank holds; together the ranks hold all. Empty on other ranks. Called by all ranks; blocks.
checkpoint::NamedTensors whole_state(const torch::nn::Module& module,
                                     const std::set<std::string>& own, const comm::Group& world);

}  // namespace troika::train
