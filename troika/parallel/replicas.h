// Replicas of a module: whether they are equal, and making them so.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "troika/comm/group.h"
#include "troika/compat/deferred_init.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// Throws Error(usage) on every rank unless all hold the parameters and buffers of rank 0, of the
// same names, shapes and types: it names a rank that does not and the first tensor that differs.
// Then copies rank 0's to all or, without `copy_state`, throws the same unless they have the same
// bits already, compared by a hash of 64 bits a tensor. Blocks.
void make_same(const comm::Group& group, torch::nn::Module& module, bool copy_state);
// The same for a module whose values are still to be made: they will be those that rank 0's
// generator gives. Without `copy_state` generators must be in the same state. Blocks.
void make_same(const comm::Group& group, torch::nn::Module& module, bool copy_state,
               compat::DeferredInit& values);

// Copies root's tensors to all ranks. Small ones are packed by type and device, so that many cost
// one message, and large ones go as they lie: it takes no more memory than kPackBytes. Nothing
// happens in a group of one rank. Blocks.
constexpr int64_t kPackBytes = 1 << 20;
void broadcast_packed(const comm::Group& group, const std::vector<at::Tensor>& tensors, int root,
                      std::string_view label);

// tensors = the sum over ranks of factor * tensors, by the number of ranks; the same bits on all
// ranks. With factor 0 this rank's values, which may be NaN, do not count. Floating types only.
// All of a type and device are packed together, in as much memory as they take; nothing changes on
// this rank before all of it has come. Blocks.
void average_packed(const comm::Group& group, const std::vector<at::Tensor>& tensors, double factor,
                    std::string_view label);

// Throws Error(usage) unless `weight` is a finite number >= 0.
void check_weight(double weight);
// Every rank's, checked. Blocks.
std::vector<double> gather_weights(const comm::Group& group, double weight);

}  // namespace troika::parallel
