// The memory of one micro-batch in a stage, from the bytes of a profile's blocks.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "troika/layout/profile.h"
#include "troika/plan/memory/range_maximum.h"

namespace troika::plan {

// Bytes beside the stage's inputs and the gradients of its outputs, which are those of messages.
struct StageBytes {
  double kept = 0;  // from the end of the forward pass to the backward pass
  double most = 0;  // in a forward pass, or in a backward pass in one part
  // The same if parameters have no gradients before the backward pass. It counts the gradients that
  // the pass has made until then.
  double most_at_first = 0;
  // If a backward pass has two parts: in the first part, between them, and in the second part.
  double most_in_input_part = 0, weight_kept = 0, most_in_weight_part = 0;
};

// A block, or several that are recomputed together.
struct PassedBlocks {
  double kept = 0;         // from the forward to the backward pass
  double most = 0;         // in a pass of these blocks, with what they keep
  double most_at_end = 0;  // the same at the end of a stage that sends its output
  double gradients = 0;    // of parameters
  // The bytes that the first of two parts takes beyond those that all blocks keep, in the middle
  // and at the end of a stage. It leaves two kinds of gradients for the second part: that of the
  // blocks' output, if the second part needs it, and others.
  double input_part = 0, input_part_at_end = 0;
  double output_gradient = 0, weight_gradients = 0;
  // The bytes that the second part needs beside the blocks' input and output_gradient, and those of
  // the input, if it needs that.
  double weight_kept = 0, weight_input = 0;
  double weight_part = 0;  // that the second part takes beyond these
};

// Returns a block that keeps its activations.
PassedBlocks keep(const layout::ProfiledBlock& block);
// Returns blocks that keep their inputs, of so many bytes, and recompute their activations.
PassedBlocks recompute(std::span<const layout::ProfiledBlock> blocks, double input_bytes);

// Answers for any consecutive blocks in constant time.
//
// A backward pass frees the activations of each block that it has passed. The first one of two
// parts (compat/split_backward.h) frees none of them before its end. It makes the gradients from
// which the second part starts; the second part frees what it has kept block by block, from the
// stage's first block on, but these gradients at its end.
class BytesOfStages {
 public:
  BytesOfStages() = default;
  explicit BytesOfStages(std::vector<PassedBlocks> blocks);

  // Returns the bytes of a stage with blocks [begin, end). `sends`: whether it sends its output.
  StageBytes of(size_t begin, size_t end, bool sends) const;

 private:
  std::vector<PassedBlocks> blocks_;
  // Sums over the blocks before each position.
  std::vector<double> kept_, gradients_, left_gradients_, weight_kept_, freed_;
  RangeMaximum most_, most_at_first_, input_part_, weight_part_;
};

}  // namespace troika::plan
