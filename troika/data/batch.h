// The samples that a step takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika::data {

// Tensors of the same samples, on the CPU as a data set gives them. Each may be undefined.
// Images: inputs float32 [n, channels, height, width], normalised; targets int64 [n].
// Text: inputs int64 [n, context]; targets int64 [n, context], each the byte after its input.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
  // Any others by name: a second input, a mask, weights of samples. Usually stacked along dim 0
  // like the two above; only strategy dp, which cuts batches along dim 0, requires that.
  std::map<std::string, at::Tensor, std::less<>> named = {};
  // The numbers of the samples in their data set, in the order of rows; empty where they are not
  // told. A Loader tells them. Masks of dropout follow from them (nn/dropout.h).
  std::vector<int64_t> samples = {};

  // Number of samples: rows of the targets, else of the inputs, else of the first named tensor that
  // is defined; 0 where nothing is.
  int64_t size() const;

  // The tensor of this name, which may also be "inputs" or "targets". Throws Error(usage), with the
  // names there are, unless there is one that is defined.
  const at::Tensor& operator[](std::string_view name) const;

  // All that are defined with their names: inputs, targets, and the named ones by name.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;
};

// Cuts every tensor into `parts` along dim 0, as at::Tensor::tensor_split does: where n is no
// multiple of `parts`, the first shares have one sample more, and shares may be empty. Throws
// Error(usage) naming a tensor that has not as many rows as the batch has samples.
std::vector<Batch> split(const Batch& batch, int64_t parts);

}  // namespace troika::data
