// Facts about a GPU that LibTorch's common headers do not tell.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace troika::compat {

// The name that its driver gives a CUDA device, as "NVIDIA H100 80GB HBM3"; empty for other devices
// and where LibTorch has no CUDA.
std::string gpu_name(c10::Device device);

}  // namespace troika::compat
