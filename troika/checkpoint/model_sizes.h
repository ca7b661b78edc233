// The sizes of a model, from the tensors of a file of its weights.
#pragma once

#include <filesystem>

#include "troika/checkpoint/safetensors.h"
#include "troika/nn/zoo.h"

namespace troika::checkpoint {

// In ModelOptions: a size that the file is to tell.
constexpr int64_t kFromFile = -1;

// Fills in what names and shapes of the tensors tell of the model `options.name`, under any of the
// names that adapt_foreign() takes: layers, widths, classes, tokens, positions and channels. Of
// hidden_layers, hidden_width, layers and width only those that are kFromFile; so with heads, which
// no tensor tells: those are n_head of Hugging Face's config.json beside `file`. Throws
// Error(usage) where there is none, or where it describes a GPT-2 that the model cannot be.
void take_sizes(nn::ModelOptions& options, const NamedTensors& tensors,
                const std::filesystem::path& file);

}  // namespace troika::checkpoint
