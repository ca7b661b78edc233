// The output tensors of a model for a batch, by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troika/nn/block.h"

namespace troika::train {

class Outputs {
 public:
  // A single output, named "outputs".
  explicit Outputs(at::Tensor output) : one_(std::move(output)) {}
  // The outputs of an nn::Model. `names` are the outputs of its last block, and must outlive this
  // object. The output of single-tensor blocks (nn::kPassing) is named "outputs".
  Outputs(const std::vector<std::string>& names, nn::Tensors tensors);

  // Throws Error(usage), listing the existing names, if `name` is not one of them.
  const at::Tensor& operator[](std::string_view name) const;
  // Returns the single output. Throws Error(usage) if there are several.
  const at::Tensor& only() const;
  // All outputs with their names, in the model's order.
  std::vector<std::pair<std::string, at::Tensor>> named() const;

 private:
  const std::vector<std::string>* names_ = nullptr;  // null for a single output
  at::Tensor one_;                                   // the single output; avoids a list
  std::string_view name_of_one_ = "outputs";
  nn::Tensors several_;
};

}  // namespace troika::train
