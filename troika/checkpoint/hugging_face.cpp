#include "troika/checkpoint/hugging_face.h"

#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/model_sizes.h"
#include "troika/compat/torch.h"

namespace troika::checkpoint {

namespace {

const char* dtype_of(const NamedTensors& weights) {
  switch (weights.front().second.scalar_type()) {
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

// Keys of transformers' GPT2Config. Byte-level text has no begin and end tokens.
nlohmann::ordered_json config_of(const nn::ModelOptions& model, const char* dtype) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", model.vocab_size},
          {"n_positions", model.context},
          {"n_embd", model.width},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", nullptr},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5},
          {"resid_pdrop", model.dropout},
          {"embd_pdrop", model.dropout},
          {"attn_pdrop", model.dropout},
          {"initializer_range", 0.02},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", model.tie_word_embeddings},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"torch_dtype", dtype}};
}

}  // namespace

void save_hugging_face(const std::filesystem::path& folder, const NamedTensors& weights,
                       const nn::ModelOptions& options) {
  if (options.name != "gpt") {
    throw Error("checkpoint", ErrorKind::usage,
                {.what = "cannot write a model for Hugging Face's transformers",
                 .got = options.name.empty() ? "a module of a program" : options.name,
                 .expected = "gpt, which is their GPT-2",
                 .hint = "without --hf, models of images are written under torchvision's names"});
  }
  auto model = options;
  model.width = model.layers = kFromFile;
  take_sizes(model, weights, folder);
  Shapes own, given;
  for (const auto& [name, tensor] : model_state(*nn::make_model(model))) {
    own.emplace_back(name, tensor.sizes().vec());
  }
  for (const auto& [name, tensor] : weights) given.emplace_back(name, tensor.sizes().vec());
  require_fit(own, given, "the checkpoint");
  make_folder(folder);
  save_safetensors(folder / "model.safetensors", weights, {{"format", "pt"}});
  write_file_atomically(folder / "config.json", config_of(model, dtype_of(weights)).dump(2) + "\n");
}

}  // namespace troika::checkpoint
