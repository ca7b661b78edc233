// The speed of LibTorch's layer norms.
#pragma once

#include "troika/compat/torch.h"

namespace troika::compat {

// Whether LibTorch's layer norm on CPUs is about as fast in 16 bits as in float32.
constexpr bool has_fast_layer_norm_in_16_bits() {
  return TROIKA_TORCH_VERSION >= 200;
}

}  // namespace troika::compat
