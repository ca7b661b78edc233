#include <ATen/cuda/CUDAContext.h>

#include "troika/compat/gpu.h"

namespace troika::compat {

std::string gpu_name(c10::Device device) {
  return device.is_cuda() ? at::cuda::getDeviceProperties(device.index())->name : "";
}

}  // namespace troika::compat
