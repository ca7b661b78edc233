// Infers the sizes of a model from the tensors in its weights file.
#pragma once

#include <filesystem>

#include "troika/checkpoint/safetensors.h"
#include "troika/nn/zoo.h"

namespace troika::checkpoint {

// In ModelOptions: marks a size that is read from the file.
constexpr int64_t kFromFile = -1;

// The sizes that a user may also give.
inline constexpr int64_t nn::ModelOptions::*kGivenSizes[] = {
    &nn::ModelOptions::hidden_layers, &nn::ModelOptions::hidden_width,
    &nn::ModelOptions::depth,         &nn::ModelOptions::convolutions,
    &nn::ModelOptions::base_width,    &nn::ModelOptions::lstm_layers,
    &nn::ModelOptions::layers,        &nn::ModelOptions::heads,
    &nn::ModelOptions::width};

// Fills in the sizes of the model `options.name` (layers, widths, classes, tokens, positions,
// channels) from the names and shapes of the tensors, under any of the names that adapt_foreign()
// accepts. kGivenSizes are set only if they are kFromFile. The tensors do not show the size of the
// images: a convolutional model, which accepts many sizes, gets one of these. The tensors do not
// show the number of attention heads either, so it is read from n_head or num_attention_heads in
// Hugging Face's config.json beside `file`; for a llama, so are norm_eps, rope and context. A name
// of sizes, such as gpt2-xl, is replaced by that of its family. Throws Error(usage) if config.json
// is missing, or if it describes a variant of GPT-2 or Llama that the model does not support.
void take_sizes(nn::ModelOptions& options, const NamedTensors& tensors,
                const std::filesystem::path& file);

}  // namespace troika::checkpoint
