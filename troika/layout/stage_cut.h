// Where a model's blocks are cut into pipeline stages.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

// The end of each stage: stage s has the blocks [ends[s - 1], ends[s]); stage 0 begins at block 0.
// The last end is the number of blocks. A stage may be empty.
using StageEnds = std::vector<size_t>;

// Reads a layout string, in the manner of Megatron-LM's pipeline_model_parallel_layout:
//
//   stem|layer1*2|layer2,layer3|head      four stages
//   stem,(block*3|)*2,block,head          blocks 0-2 with the stem, 3-5, and the rest with the head
//
// `|` ends a stage. An item is the name of a block, or the common prefix of several blocks' names
// before a dot (`layer1` for layer1.0 and layer1.1). It takes all blocks of this name that come
// next, or with `*n` the next n of them. A list in parentheses may be repeated in the same way.
// Blanks are ignored. `blocks` are the names of the model's blocks, in their order, which the
// string must follow from the first to the last.
//
// Throws Error(usage) for a string that cannot be parsed, a name that is not the next block's (the
// error has the next block's name), and blocks that are in no stage.
StageEnds parse_cut(std::string_view text, const std::vector<std::string>& blocks);
// Returns a layout string for parse_cut().
std::string cut_text(const StageEnds& ends, const std::vector<std::string>& blocks);

// Returns the cut into `stages` stages of consecutive blocks that minimizes the cost of the most
// expensive stage; among these, the cut with the least sum of squared costs. Uses an exact dynamic
// program in O(stages blocks^2). `costs` has a cost >= 0 for each block, in any unit. If there are
// fewer blocks than stages, the last stages are empty; otherwise no stage is.
StageEnds balanced_cut(const std::vector<double>& costs, int stages);

// The same for costs that depend on the stage: `cost` returns that of blocks [begin, end) in a
// stage, which must not fall if `end` grows. Calls it O(stages blocks^2) times.
StageEnds balanced_cut(size_t blocks, int stages,
                       const std::function<double(int stage, size_t begin, size_t end)>& cost);

}  // namespace troika::layout
