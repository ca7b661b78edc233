// A batch of samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika::data {

// Tensors of the same samples, on the CPU when a data set returns them. Each may be undefined.
// Images: inputs float32 [n, channels, height, width], normalised; targets int64 [n].
// Text: inputs int64 [n, context]; targets int64 [n, context], each the byte after its input.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
  // Other tensors by name: a second input, a mask, weights of samples. Usually stacked along dim 0
  // like inputs and targets; only strategy dp, which splits batches along dim 0, requires that.
  std::map<std::string, at::Tensor, std::less<>> named = {};
  // The indices of the samples in their data set, in the order of rows; empty if unknown. A Loader
  // sets them. Masks of dropout depend on them (nn/dropout.h).
  std::vector<int64_t> samples = {};
  // Whether all tensors are in host memory that is no longer written and from which a device
  // copies asynchronously (LoaderOptions::device).
  bool is_staged = false;

  // Returns the number of samples: the rows of the targets, or else of the inputs, or else of the
  // first defined named tensor; 0 if no tensor is defined.
  int64_t size() const;

  // Returns the tensor of this name, which may also be "inputs" or "targets". Throws Error(usage),
  // listing the defined names, if it is not defined.
  const at::Tensor& operator[](std::string_view name) const;

  // Returns all defined tensors with their names: inputs, targets, and the named ones in order of
  // names.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;
};

// Splits every tensor into `parts` along dim 0, as at::Tensor::tensor_split does: if n is not a
// multiple of `parts`, the first parts have one sample more, and parts may be empty. Throws
// Error(usage) naming a tensor whose number of rows is not the number of samples.
std::vector<Batch> split(const Batch& batch, int64_t parts);

}  // namespace troika::data
