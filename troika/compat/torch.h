// The one place that knows how LibTorch versions differ (1.13 to 2.x). Nothing else in the project
// tests a LibTorch version or names a c10d or autograd internal that moved between them.
//
// Gate on MAJOR and MINOR alone: Debian's 1.13.1 reports itself as 1.13.0.
#pragma once

#include <torch/torch.h>
#include <torch/version.h>

#include <optional>
#include <string>

#define TROIKA_TORCH_VERSION (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

namespace troika::compat {

// c10::optional until it became an alias of std::optional in 2.x; either spelling of LibTorch's
// signatures accepts it.
template <typename T>
using Optional = c10::optional<T>;

// LibTorch this was compiled against, e.g. "1.13.0".
inline std::string torch_version() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + "." +
         std::to_string(TORCH_VERSION_PATCH);
}

}  // namespace troika::compat
