// Facts about a GPU that LibTorch's common headers do not provide.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace troika::compat {

// Returns the driver's name of a CUDA device, e.g. "NVIDIA H100 80GB HBM3"; empty for other devices
// and if LibTorch has no CUDA.
std::string gpu_name(c10::Device device);

}  // namespace troika::compat
