// Replicas of a module: whether they are equal, and making them so.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "troika/comm/group.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// Throws Error(usage) on every rank unless all hold the parameters and buffers of rank 0, of the
// same names, shapes and types: it names a rank that does not and the first tensor that differs.
// Blocks.
void check_same_structure(const comm::Group& group, const torch::nn::Module& module);

// The same of the bits in the parameters and buffers, compared by a hash of 64 bits a tensor.
void check_same_bits(const comm::Group& group, const torch::nn::Module& module);

// Copies root's tensors to all ranks, packed by type and device so that many small ones cost one
// message. Blocks.
void broadcast_packed(const comm::Group& group, const std::vector<at::Tensor>& tensors, int root,
                      std::string_view label);

// Parameters and buffers of rank 0 to all ranks.
void broadcast_state(const comm::Group& group, const torch::nn::Module& module);

}  // namespace troika::parallel
