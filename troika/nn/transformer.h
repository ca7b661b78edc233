// Functions that the language models share.
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/nn/zoo.h"

namespace troika::nn {

// Throws Error(usage) unless the sizes that all language models have are at least 1, and the width
// divides into the heads.
void check_transformer(const ModelOptions& options);

// Throws Error(usage) unless `tokens` is Long [batch, length], whose token_positions() are within
// the context.
void check_tokens(const at::Tensor& tokens, const ModelOptions& options);

// Returns `stream + output` with the same bits. If autocast made the output bfloat16, LibTorch's
// sum of two types takes ten times as long on the CPU.
at::Tensor add_to_stream(const at::Tensor& stream, const at::Tensor& output);

}  // namespace troika::nn
