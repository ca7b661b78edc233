// Weights that other programs saved in one safetensors file or in several.
#pragma once

#include <filesystem>

#include "troika/checkpoint/safetensors.h"

namespace troika::checkpoint {

// Reads all tensors of a safetensors file, or of the files that an index names: Hugging Face's
// `model.safetensors.index.json`, whose `weight_map` has the file of each tensor, in the same
// folder. Throws Error(usage) for a file name with a folder, for a tensor that its file lacks, and
// for text that is no index.
NamedTensors load_weight_files(const std::filesystem::path& path);

// Returns tensors of the same names, shapes and types, read from the headers alone. They have the
// memory of one element, whose value is 0.
NamedTensors weight_shapes(const std::filesystem::path& path);

// Returns the file of the weights in a folder of a model of Hugging Face, which has a config.json:
// `model.safetensors.index.json`, or else `model.safetensors`. Returns all other paths unchanged.
std::filesystem::path in_model_folder(const std::filesystem::path& path);

}  // namespace troika::checkpoint
