// In which order the numbers of linear layers' weights lie in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/nn/precision.h"

namespace torch::nn {
class Module;
}

namespace troika::nn {

// The layout of a weight [in, out] (dense.h). in_out: the numbers of one input lie side by side.
// out_in: those of one output, as in PyTorch's Linear. Which one has the faster products depends on
// the processor, the shapes and the version of LibTorch. Shapes, names and files do not depend on
// it. Results differ by rounding alone.
enum class WeightLayout { in_out, out_in };

// "auto", "in_out", "out_in".
const std::vector<std::string>& weight_layout_names();
// "in_out" or "out_in".
const std::string& weight_layout_name(WeightLayout layout);
// "auto" is in_out, in which files have these weights. Throws Error(usage) for another name.
WeightLayout parse_weight_layout(const std::string& name);

// Gives the weights of all Conv1D (dense.h) at or below `module`, which are the linear layers of
// GPTs, this layout; values and tensors stay, and copies of them in the type of a mixed precision
// follow it. Other modules stay as they are. To be called before optimizers and exchanges are made
// of them.
void lay_out_weights(torch::nn::Module& module, WeightLayout layout);

// Seconds of a forward and a backward pass through the four linear layers of a block of a GPT by
// each of `layouts`, the least of several, taking turns, in this thread's number of threads. `rows`
// is batch times length. Takes about half a second, but at least two passes through each layer by
// each layout. Holds one layer at a time.
std::vector<double> time_weight_layouts(int64_t rows, int64_t width, const Precision& precision,
                                        const std::vector<WeightLayout>& layouts);

}  // namespace troika::nn
