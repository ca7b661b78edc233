// Where a model's blocks are cut into pipeline stages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

// The end of each stage: stage s has blocks [ends[s - 1], ends[s]), from block 0 on. The last end
// is the number of blocks. A stage may be empty.
using StageEnds = std::vector<size_t>;

// Reads a layout string, in the manner of Megatron-LM's pipeline_model_parallel_layout:
//
//   stem|layer1*2|layer2,layer3|head      four stages
//   stem,(block*3|)*2,block,head          blocks 0-2 with the stem, 3-5, and the rest with the head
//
// `|` ends a stage. An item names a block, or the blocks whose names begin with it and a dot
// (`layer1` for layer1.0 and layer1.1); it takes all of them that follow, or the next n with `*n`.
// A list in parentheses may be repeated as well. Blanks are ignored. `blocks` are the names of the
// model's blocks, in their order, which the string must follow from the first to the last.
//
// Throws Error(usage) for a string that cannot be read, a name that is not the next block's (with
// the next one's name), and blocks left over.
StageEnds parse_cut(std::string_view text, const std::vector<std::string>& blocks);
// Returns a layout string for parse_cut().
std::string cut_text(const StageEnds& ends, const std::vector<std::string>& blocks);

// Returns the cut into `stages` stages of consecutive blocks whose most expensive stage costs
// least, and among these cuts the one with the least sum of squared costs. An exact dynamic
// programme in O(stages blocks^2). `costs` has a cost >= 0 for each block, in any unit. No stage is
// empty unless there are fewer blocks than stages; then the last ones are.
StageEnds balanced_cut(const std::vector<double>& costs, int stages);

}  // namespace troika::layout
