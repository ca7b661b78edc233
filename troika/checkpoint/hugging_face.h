// Exports models in the format of Hugging Face's transformers.
#pragma once

#include <filesystem>

#include "troika/checkpoint/safetensors.h"
#include "troika/nn/zoo.h"

namespace troika::checkpoint {

// Writes `folder`/config.json and `folder`/model.safetensors for
// transformers.GPT2LMHeadModel.from_pretrained(folder). The output layer is tied to
// `transformer.wte.weight` and therefore not in the file. The model's name, heads and dropout are
// taken from `options`, all other sizes from the tensors. Throws Error(usage) for models other than
// gpt, and for tensors that do not belong to a gpt.
void save_hugging_face(const std::filesystem::path& folder, const NamedTensors& weights,
                       const nn::ModelOptions& options);

}  // namespace troika::checkpoint
