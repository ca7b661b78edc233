// Converts tensors to and from the form that back ends accept: contiguous, on a device they can
// access.
#pragma once

#include <ATen/ATen.h>

#include "troika/compat/accelerator.h"

namespace troika::comm {

inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu();
}

// Views booleans as bytes, for transfer and reduction.
inline at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool ? tensor.view(at::kByte) : tensor;
}

// Returns the tensor itself if it is contiguous and on `device`; otherwise a contiguous tensor
// there of the same shape. With `filled`, the content is copied too, and the host may read a host
// tensor when this returns.
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

// Copies a result back to the caller's tensor. A copy from the host to a device is queued on its
// current stream.
inline void unpack(const at::Tensor& from, const at::Tensor& into) {
  if (from.data_ptr() == into.data_ptr()) return;
  into.detach().copy_(into.scalar_type() == at::kBool ? from.view(at::kBool) : from,
                      /*non_blocking=*/true);
}

}  // namespace troika::comm
