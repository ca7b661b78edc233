// Exports models in the format of Hugging Face's transformers.
#pragma once

#include <filesystem>

#include "troika/checkpoint/safetensors.h"
#include "troika/nn/zoo.h"

namespace troika::checkpoint {

// Writes `folder`/config.json and `folder`/model.safetensors for
// transformers.GPT2LMHeadModel.from_pretrained(folder), or LlamaForCausalLM for a llama. An output
// layer that is tied to the token embedding is not in the file. The sizes that the tensors of a gpt
// show are taken from them, and all others from `options`. Throws Error(usage) for other models,
// and for tensors that do not belong to the model.
void save_hugging_face(const std::filesystem::path& folder, const NamedTensors& weights,
                       const nn::ModelOptions& options);

}  // namespace troika::checkpoint
