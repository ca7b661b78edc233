// Activation checkpointing: tensors that a function saves for its backward pass are recomputed when
// the backward pass needs them (Chen et al. 2016, arXiv 1604.06174).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "troika/nn/block.h"

namespace troika::nn {

struct CheckpointOptions {
  std::string name = "a function";  // for error messages
  // Tensors the function writes to, such as batch-norm statistics; a recomputation restores them.
  std::vector<at::Tensor> buffers = {};
  // Keeps results of mm, addmm and convolutions, and recomputes everything else: selective
  // activation recomputation (Korthikanti et al. 2022, arXiv 2205.05198, section 5). The core of
  // attention consists of batched products, so it is recomputed.
  bool keep_products = false;
};

// Returns function(inputs), and autograd keeps only the inputs. The backward pass calls the
// function again, with the random state and autocast of this call, up to the last tensor it needs.
// Gradients have the same bits as without checkpointing. Calls may be nested. With gradients off it
// is a plain call.
//
// The function must do the same each time, and write to nothing but `buffers`. Backward passes
// throw Error(failure) naming the first tensor that was not made, or that has another shape or
// type. While other threads draw random numbers from the same generator, the function must draw
// none.
Tensors checkpoint(const BlockFunction& function, const Tensors& inputs,
                   const CheckpointOptions& options = {});
// The overload for one input and one output.
at::Tensor checkpoint(const BlockFunction& function, const at::Tensor& input,
                      const CheckpointOptions& options = {});

// The same for a LibTorch without hooks on saved tensors: runs a backward pass inside the backward
// pass, and recomputes everything. Supports backward() only, not torch::autograd::grad().
Tensors checkpoint_reentrant(const BlockFunction& function, const Tensors& inputs,
                             const CheckpointOptions& options = {});

}  // namespace troika::nn
