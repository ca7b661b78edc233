// Reductions over the ranks that together own a model's parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace troika::parallel {

// Reduces statistics, such as norms. Each rank gives the statistics of the elements that it owns,
// and all ranks get those of the whole model, with the same bits. Called by all ranks; blocks.
class GroupReducer {
 public:
  virtual ~GroupReducer() = default;

  // Replaces `numbers` by their sum over the ranks that own different elements. `label` names the
  // collective in flight records.
  virtual void sum(const at::Tensor& numbers, std::string_view label) const = 0;
  // Replaces `numbers` by their maximum over all ranks.
  virtual void max(const at::Tensor& numbers, std::string_view label) const = 0;

  // Returns whether `here` is true on any rank.
  bool any(bool here, std::string_view label) const;

  // Returns a reducer that does nothing, for ranks that each own all elements.
  static const GroupReducer& of_whole_model();
};

}  // namespace troika::parallel
