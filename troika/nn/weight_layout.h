// Memory layouts of linear layers' weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/nn/precision.h"

namespace torch::nn {
class Module;
}

namespace troika::nn {

// The layout of a weight [in, out] (dense.h). in_out: the values of one input are adjacent. out_in:
// the values of one output are adjacent, as in PyTorch's Linear. The layout with the faster matrix
// products depends on the processor, the shapes and the version of LibTorch. Shapes, names and
// files do not depend on the layout. Results differ only by rounding.
enum class WeightLayout { in_out, out_in };

// Returns "auto", "in_out", "out_in".
const std::vector<std::string>& weight_layout_names();
// Returns "in_out" or "out_in".
const std::string& weight_layout_name(WeightLayout layout);
// "auto" is in_out, the layout of these weights in files. Throws Error(usage) for an unknown name.
WeightLayout parse_weight_layout(const std::string& name);

// Changes the weights of all Conv1D (dense.h), the linear layers of GPTs, at or below `module` to
// this layout. Values and tensor objects stay, and copies in the type of a mixed precision get the
// same layout. Other modules are unchanged. Call it before optimizers and exchanges are made from
// them.
void lay_out_weights(torch::nn::Module& module, WeightLayout layout);

// Returns the seconds of a forward and a backward pass through the four linear layers of a GPT
// block for each of `layouts`: the minimum of several runs, interleaved, with this thread's number
// of threads. `rows` is batch times length. Takes about half a second, but at least two runs per
// layer and layout. Holds one layer at a time.
std::vector<double> time_weight_layouts(int64_t rows, int64_t width,
                                        const NumericPrecision& precision,
                                        const std::vector<WeightLayout>& layouts);

}  // namespace troika::nn
