// The sizes of the model whose weights a new run takes.
#pragma once

#include "troika/train/options/options.h"

namespace troika::train {

// Returns options.model with the sizes of the language model that options.weights names, and its
// own adapters. The weights are a checkpoint of troika, a file with its options, or weights of
// Hugging Face with their config.json. Reads no weights. Throws Error(usage) for other models,
// without weights, and if the options set a size to another value than its default and the
// weights'.
nn::ModelOptions with_sizes_of_weights(const TrainOptions& options);

// Throws Error(usage) if the weights at `path` have adapters (nn/lora.h), and their options say
// that they are scaled in another way than those of the model. Weights without options are not
// compared; for options of another version, which cannot be read, it warns.
void require_same_scaling(const nn::ModelOptions& model, const std::filesystem::path& path);

}  // namespace troika::train
