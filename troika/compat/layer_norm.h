// Tells which layer norms of LibTorch are slow.
#pragma once

#include "troika/compat/torch.h"

namespace troika::compat {

// Whether LibTorch's layer norm takes about as long in 16 bits as in float32 on CPUs.
constexpr bool has_fast_layer_norm_in_16_bits() {
  return TROIKA_TORCH_VERSION >= 200;
}

}  // namespace troika::compat
