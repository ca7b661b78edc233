// Loads weights that other programs saved, under the names that those programs use.
#pragma once

#include <filesystem>
#include <string_view>

#include "troika/checkpoint/safetensors.h"

namespace torch::nn {
class Module;
}

namespace troika::checkpoint {

// Renames the tensors of a file to those of a model, `model`. Handles
//   - names with or without `transformer.` (Hugging Face's GPT2LMHeadModel and GPT2Model) or
//   `model.`
//     (LlamaForCausalLM and LlamaModel), and names that begin with `module.` (PyTorch's
//     DistributedDataParallel);
//   - GPT-2's masks `attn.bias` and `attn.masked_bias`, and Llama's `rotary_emb.inv_freq`, which
//   are
//     dropped;
//   - `lm_head.weight`, which must equal the token embedding bit for bit unless the model has an
//     output layer of its own; this layer begins as the embedding where the file has none;
//   - layers of GPT-2 stored as [out, in] (nanoGPT), which are transposed;
//   - torchvision's Inception, whose auxiliary classifier is dropped;
//   - batch norms without `num_batches_tracked` (before PyTorch 0.4.1), which keep the model's.
// Other names stay unchanged; load_into() reports names that do not match. Throws Error(usage) if
// the output layer is not tied to the embedding, but the model's is. `origin` names the source of
// the tensors in messages.
NamedTensors adapt_foreign(const NamedTensors& tensors, const NamedTensors& model,
                           std::string_view origin);

// Loads load_weights(path), under any of these names, into the module of a new run. Unless
// `strict`, tensors that are missing in the file or have another shape keep their values, and are
// logged, and so is that adapters in the file are left out. Adapters (nn/lora.h) keep their values
// if the file has none. Throws Error(usage) naming the tensors that do not match (with `strict`),
// or if none match.
void take_weights(torch::nn::Module& module, const std::filesystem::path& path, bool strict);

}  // namespace troika::checkpoint
