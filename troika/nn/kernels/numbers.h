// Conversion of tensors into arguments of the kernels in this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/nn/kernels/kernels.h"

namespace troika::nn::kernels {

inline bool takes(const at::Tensor& tensor) {
  return tensor.is_cpu() &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16);
}

inline Number number_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? Number::f32 : Number::bf16;
}

// Returns the address of an element of a contiguous tensor.
inline char* at_element(const at::Tensor& tensor, int64_t index) {
  return static_cast<char*>(tensor.data_ptr()) + index * tensor.element_size();
}

}  // namespace troika::nn::kernels
