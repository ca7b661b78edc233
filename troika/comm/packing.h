// Tensors as back ends take them: contiguous, and in memory that they reach.
#pragma once

#include <ATen/ATen.h>

#include "troika/compat/accelerator.h"

namespace troika::comm {

// Booleans travel and are reduced as bytes.
inline at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool ? tensor.view(at::kByte) : tensor;
}

// A contiguous tensor with the same content where `device` says, or the tensor itself where it is
// that already. `filled` is whether the content counts: the host may read it when this returns.
inline at::Tensor packed(const at::Tensor& tensor, c10::Device device, bool filled) {
  if (!tensor.defined()) return {};
  if (tensor.device() == device && tensor.is_contiguous()) return as_bytes(tensor);
  const auto options = device.is_cpu() && !tensor.is_cpu()
                           ? compat::staging_options(tensor)
                           : tensor.options().requires_grad(false).device(device);
  const auto result = at::empty(tensor.sizes(), options);
  if (filled) result.copy_(tensor.detach());
  return as_bytes(result);
}

// A copy from the host to a device is queued on its current stream.
inline void unpack(const at::Tensor& from, const at::Tensor& into) {
  if (from.data_ptr() == into.data_ptr()) return;
  into.detach().copy_(into.scalar_type() == at::kBool ? from.view(at::kBool) : from,
                      /*non_blocking=*/true);
}

}  // namespace troika::comm
