#include "troika/compat/gpu.h"

namespace troika::compat {

std::string gpu_name(c10::Device) {
  return "";
}

}  // namespace troika::compat
