// Activation checkpointing: what a function saves for its backward pass is made again when that
// needs it (Chen et al. 2016, arXiv 1604.06174).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "troika/nn/block.h"

namespace troika::nn {

struct CheckpointOptions {
  std::string name = "a function";  // in messages
  // Tensors the function writes to, as statistics of batch norms: a recomputation puts them back.
  std::vector<at::Tensor> buffers = {};
  // Keeps results of mm, addmm and convolutions, and recomputes all else: selective activation
  // recomputation (Korthikanti et al. 2022, arXiv 2205.05198, section 5), in which the core of
  // attention, of batched products, is recomputed.
  bool keep_products = false;
};

// function(inputs), of which autograd keeps the inputs alone. The backward pass calls the function
// again, with the random state and autocast of this call, up to the last tensor it needs. Gradients
// have the same bits as without. Calls nest; with gradients off it is a plain call.
//
// The function must do the same each time, and write to nothing but `buffers`. Backward passes
// throw Error(failure) naming the first tensor that came out in another shape or type, or not at
// all. It may be called while others draw random numbers from the same generator only if it draws
// none.
Tensors checkpoint(const BlockFunction& function, const Tensors& inputs,
                   const CheckpointOptions& options = {});
// The short form for one tensor of one.
at::Tensor checkpoint(const BlockFunction& function, const at::Tensor& input,
                      const CheckpointOptions& options = {});

// The same for a LibTorch that does not let us at saved tensors: with a backward pass inside the
// backward pass, and all recomputed. For backward() alone, not for torch::autograd::grad().
Tensors checkpoint_reentrant(const BlockFunction& function, const Tensors& inputs,
                             const CheckpointOptions& options = {});

}  // namespace troika::nn
