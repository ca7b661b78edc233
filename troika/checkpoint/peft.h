// Adapters (nn/lora.h) in the format of Hugging Face's PEFT: a folder with `adapter_config.json`
// and `adapter_model.safetensors`, which peft.PeftModel.from_pretrained() reads.
#pragma once

#include <filesystem>
#include <string>

#include "troika/checkpoint/safetensors.h"
#include "troika/nn/lora.h"

namespace troika::nn {
class Model;
}

namespace troika::checkpoint {

// Writes the adapters of a model. `base`, which PEFT calls base_model_name_or_path, says which
// model they belong to; it may be empty. Throws Error(usage) for a model without adapters, and for
// a path that is no folder.
void save_peft(const std::filesystem::path& folder, const nn::Model& model,
               const nn::LoraOptions& options, const std::string& base);

struct PeftAdapter {
  nn::LoraOptions options;  // target_modules are full names
  NamedTensors tensors;     // under the names of a model with these adapters
};

// Reads a folder that PEFT or save_peft() wrote. Throws Error(usage) for a kind of adapter that
// nn::add_adapters() does not make: DoRA, biases, modules that are saved whole, ranks that differ
// between layers, initializations that change the base's weights, and methods other than LoRA.
PeftAdapter load_peft(const std::filesystem::path& folder);

}  // namespace troika::checkpoint
