// The tensors between the blocks of a model.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "troika/nn/block.h"

namespace troika::nn {

// Names that some blocks [begin, end) of a model take from before, in the order in which they are
// first taken. For the whole model: its inputs.
std::vector<std::string> names_into(const std::vector<Block>& blocks, size_t begin, size_t end);
// Names that these blocks give and that are needed after them: taken by a later block, or given by
// the last block of all, in the order in which they are last given.
std::vector<std::string> names_out_of(const std::vector<Block>& blocks, size_t begin, size_t end);

// Throw Error(usage) unless there is one defined tensor for each name, among what a model is called
// with, and what a block gives.
void require_inputs(const std::vector<std::string>& names, const Tensors& inputs);
void require_outputs(const Block& block, const std::vector<std::string>& names,
                     const Tensors& outputs);

// Tensors by name while blocks run. Each is let go of when the last block that needs it has taken
// it.
class Flow {
 public:
  // `blocks` are all blocks of the model; they must outlive the flow. One tensor for each name, or
  // Error(usage) is thrown.
  Flow(const std::vector<Block>& blocks, const std::vector<std::string>& names, Tensors tensors);

  // Gives the tensors of these names. Names that no block from `next` on needs leave the flow.
  Tensors take(const std::vector<std::string>& names, size_t next);
  // One defined tensor for each name.
  void give(const std::vector<std::string>& names, Tensors tensors);

 private:
  const std::vector<Block>& blocks_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace troika::nn
