// The stages of a pipeline that compute their backward passes in two parts.
#pragma once

#include <cstddef>
#include <vector>

#include "troika/layout/profile.h"

namespace troika::plan {

// Answers as parallel::can_split_backward() for the profile's model: a stage computes all of its
// backward pass at once if none of its inputs has a gradient, if it has an output layer
// (ProfiledBlock::has_output_layer), or if any block of the model is recomputed.
class SplitBackward {
 public:
  // `order` is a topological order of the profile's blocks. A block's output has a gradient if the
  // block or one that it depends on has parameters; in a profile that tells no parameters, always.
  SplitBackward(const layout::Profile& profile, const std::vector<size_t>& order);

  // Whether a stage with blocks [begin, end) of the order splits its backward passes, if no block
  // of the model is recomputed.
  bool splits(size_t begin, size_t end) const {
    return first_reader_[begin] < end && output_layers_[begin] == output_layers_[end];
  }

 private:
  // By the place at which a stage begins: the first block from there on that reads an output with a
  // gradient from before, or the number of blocks.
  std::vector<size_t> first_reader_;
  std::vector<size_t> output_layers_;  // the number of those before each place
};

}  // namespace troika::plan
