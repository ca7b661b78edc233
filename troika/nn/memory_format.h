// In which order the numbers of images and of convolutions' weights lie in memory.
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

// "auto", "contiguous", "channels_last".
const std::vector<std::string>& memory_format_names();

// "contiguous" or "channels_last".
const std::string& memory_format_name(at::MemoryFormat format);

// Contiguous: [batch, channels, rows, columns] as written. Channels last: the channels of a pixel
// side by side, which is how oneDNN computes. "auto" is channels last where convolutions compute in
// 16 bits, which it makes faster, and contiguous elsewhere: in float32 it depends on the network
// (docs/precision-and-memory.md). Throws Error(usage) for another name.
at::MemoryFormat parse_memory_format(const std::string& name, const Precision& precision);

// Gives the module's parameters of four dimensions this order; values and tensors stay. To be
// called before optimizers and exchanges are made of them.
void lay_out(torch::nn::Module& module, at::MemoryFormat format);

// Seconds of a forward and a backward pass of a fresh model of images by each of `formats`, the
// least of several, taking turns, in this thread's number of threads. Takes so many passes as fit
// into two seconds, but at least two by each. Leaves the random generator as it was.
std::vector<double> time_memory_formats(const ModelOptions& options, int64_t batch,
                                        const Precision& precision,
                                        const std::vector<at::MemoryFormat>& formats);

}  // namespace troika::nn
