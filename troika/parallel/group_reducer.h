// Sums and flags over the ranks that own a model's parameters between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace troika::parallel {

// Makes numbers of the elements that this rank owns to numbers of the whole model, the same bits on
// all ranks. Called by all ranks; blocks.
class GroupReducer {
 public:
  virtual ~GroupReducer() = default;

  // numbers = their sum over the ranks that own different elements. `label` names the collective in
  // flight records.
  virtual void sum(const at::Tensor& numbers, std::string_view label) const = 0;
  // numbers = their greatest over all ranks.
  virtual void max(const at::Tensor& numbers, std::string_view label) const = 0;

  // Whether `here` is true on any rank.
  bool any(bool here, std::string_view label) const;

  // For ranks that each own all elements: numbers are those of the whole model already.
  static const GroupReducer& of_whole_model();
};

}  // namespace troika::parallel
