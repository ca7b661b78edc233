// The tensors that a model gives for a batch, by name.
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
  // One, named "outputs".
  explicit Outputs(at::Tensor output) : one_(std::move(output)) {}
  // Those of an nn::Model, whose last block gives them under `names`, which must outlive this
  // object. What blocks of one tensor give (nn::kPassing) is named "outputs".
  Outputs(const std::vector<std::string>& names, nn::Tensors tensors);

  // Throws Error(usage) with the names there are, unless this is one of them.
  const at::Tensor& operator[](std::string_view name) const;
  // The only one. Throws Error(usage) where there are several.
  const at::Tensor& only() const;
  // All with their names, in the order in which the model gives them.
  std::vector<std::pair<std::string, at::Tensor>> named() const;

 private:
  const std::vector<std::string>* names_ = nullptr;  // of several
  at::Tensor one_;                                   // without a list, as in most steps
  std::string_view name_of_one_ = "outputs";
  nn::Tensors several_;
};

}  // namespace troika::train
