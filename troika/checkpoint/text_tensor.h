// Stores text as tensors in a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace troika::checkpoint {

// The bytes of the text as uint8 [length].
at::Tensor text_tensor(const std::string& text);
std::string text_of(const at::Tensor& bytes);

}  // namespace troika::checkpoint
