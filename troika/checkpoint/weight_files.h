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

}  // namespace troika::checkpoint
