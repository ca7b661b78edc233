// Memory formats of images and of convolutions' weights.
#pragma once

#include <c10/core/MemoryFormat.h>

#include <string>
#include <vector>

#include "troika/nn/precision.h"
#include "troika/nn/zoo.h"

namespace torch::nn {
class Module;
}

namespace troika::nn {

// Returns "auto", "contiguous", "channels_last".
const std::vector<std::string>& memory_format_names();

// Returns "contiguous" or "channels_last".
const std::string& memory_format_name(at::MemoryFormat format);

// Contiguous: [batch, channels, rows, columns] in this order. Channels last: the channels of a
// pixel are adjacent, which is oneDNN's order. "auto" is channels last if convolutions compute in
// 16 bits, which it makes faster, and contiguous otherwise: in float32 the faster format depends on
// the network (docs/precision-and-memory.md). Throws Error(usage) for an unknown name.
at::MemoryFormat parse_memory_format(const std::string& name, const NumericPrecision& precision);

// Changes the module's four-dimensional parameters to this format; values and tensor objects stay.
// Call it before optimizers and exchanges are made from them.
void lay_out(torch::nn::Module& module, at::MemoryFormat format);

// Returns the seconds of a forward and a backward pass of a new model of images for each of
// `formats`: the minimum of several runs, interleaved, with this thread's number of threads. Starts
// new runs for two seconds, but two per format at least and six at most. Restores the random
// generator.
std::vector<double> time_memory_formats(const ModelOptions& options, int64_t batch,
                                        const NumericPrecision& precision,
                                        const std::vector<at::MemoryFormat>& formats);

}  // namespace troika::nn
