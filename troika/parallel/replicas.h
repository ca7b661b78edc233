// Comparing replicas of a module and making them equal.
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

// Throws Error(usage) on every rank unless all ranks have parameters and buffers of the same names,
// shapes and types as rank 0; the error names a rank that differs and its first different tensor.
// Then copies rank 0's values to all ranks. Without `copy_state` it throws the same error unless
// the values are already bitwise equal, compared by a 64-bit hash per tensor. Blocks.
void make_same(const comm::Group& group, torch::nn::Module& module, bool copy_state);
// The same for a module whose values do not exist yet: all ranks will make them with the state of
// rank 0's generator. Without `copy_state` the generators of all ranks must be in the same state
// already. Blocks.
void make_same(const comm::Group& group, torch::nn::Module& module, bool copy_state,
               compat::DeferredInit& values);

// Copies root's tensors to all ranks. Small tensors are packed by type and device into few
// messages; large ones are sent in place. Packing takes at most kPackBytes of memory. Does nothing
// in a group of one rank. Blocks.
constexpr int64_t kPackBytes = 1 << 20;
void broadcast_packed(const comm::Group& group, const std::vector<at::Tensor>& tensors, int root,
                      std::string_view label);

// Replaces `tensors` by (sum over ranks of factor * tensors) / ranks, with the same bits on all
// ranks. With factor 0 this rank's values, which may be NaN, are ignored. Floating types only.
// Packs all tensors of a type and device into one copy, so it takes as much memory as the tensors.
// Tensors on this rank change only after all data have arrived. Blocks.
void average_packed(const comm::Group& group, const std::vector<at::Tensor>& tensors, double factor,
                    std::string_view label);

// Copies of tensors of one type and device, one after another.
struct PackedTensors {
  std::vector<at::Tensor> members;
  at::Tensor flat;  // on the members' device

  // Copies the values back.
  void unpack() const;
};
// Packs the tensors of each type and device, in an order that is the same on all ranks.
std::vector<PackedTensors> pack_alike(const std::vector<at::Tensor>& tensors);

// Throws Error(usage) unless `weight` is a finite number >= 0.
void check_weight(double weight);
// Returns every rank's weight, after check_weight(). Blocks.
std::vector<double> gather_weights(const comm::Group& group, double weight);

}  // namespace troika::parallel
