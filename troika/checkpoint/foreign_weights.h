// Weights that other programs saved, under the names they use.
#pragma once

#include <filesystem>
#include <string_view>

#include "troika/checkpoint/safetensors.h"

namespace torch::nn {
class Module;
}

namespace troika::checkpoint {

// The tensors of a file as those of a model, whose own are `model`. Understood are
//   - names with or without `transformer.` (Hugging Face's GPT2LMHeadModel and GPT2Model), and
//     behind `module.` (PyTorch's DistributedDataParallel);
//   - GPT-2's masks `attn.bias` and `attn.masked_bias`, which are left out, and `lm_head.weight`,
//     which must be the token embedding's bits;
//   - layers of GPT-2 stored [out, in] (nanoGPT), which are transposed;
//   - torchvision's Inception with its auxiliary classifier, which is left out;
//   - batch norm without `num_batches_tracked` (before PyTorch 0.4.1), which keeps the model's.
// Other names stay as they are: load_into() says what does not fit. Throws Error(usage) for an
// output that is not tied; `origin` says in messages where the tensors come from.
NamedTensors adapt_foreign(const NamedTensors& tensors, const NamedTensors& model,
                           std::string_view origin);

// Gives the module, for a new run, load_weights(path) under any of these names. Unless `strict`,
// tensors that the file does not have, or in another shape, keep their values, and it is logged
// which. Throws Error(usage) naming what does not fit, or where nothing does.
void take_weights(torch::nn::Module& module, const std::filesystem::path& path, bool strict);

}  // namespace troika::checkpoint
