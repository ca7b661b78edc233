// Models in the form that Hugging Face's transformers load.
#pragma once

#include <filesystem>

#include "troika/checkpoint/safetensors.h"
#include "troika/nn/zoo.h"

namespace troika::checkpoint {

// Writes `folder`/config.json and `folder`/model.safetensors, which
// transformers.GPT2LMHeadModel.from_pretrained(folder) reads. The output layer is tied to
// `transformer.wte.weight`, so it is not in the file. `options` tell the model, its heads and its
// dropout; the other sizes are the tensors'. Throws Error(usage) for another model than gpt, and
// for tensors that are not a gpt's.
void save_hugging_face(const std::filesystem::path& folder, const NamedTensors& weights,
                       const nn::ModelOptions& options);

}  // namespace troika::checkpoint
