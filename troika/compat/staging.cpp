#include "troika/compat/staging.h"

#include "troika/compat/torch.h"

namespace troika::compat {

at::Tensor staged_for(c10::DeviceType type, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto options = tensor.options().requires_grad(false).pinned_memory(type == c10::kCUDA);
  auto result = at::empty_like(tensor, options);
  result.copy_(tensor);
  return result;
}

}  // namespace troika::compat
