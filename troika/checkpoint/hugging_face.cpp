#include "troika/checkpoint/hugging_face.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

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
nlohmann::ordered_json gpt_config(const nn::ModelOptions& model, const char* dtype) {
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

nlohmann::ordered_json rope_config(const nn::RopeOptions& rope) {
  if (rope.scaling == "default") return nullptr;
  nlohmann::ordered_json config{{"rope_type", rope.scaling}, {"factor", rope.factor}};
  if (rope.scaling == "linear") return config;
  config["low_freq_factor"] = rope.low_freq_factor;
  config["high_freq_factor"] = rope.high_freq_factor;
  config["original_max_position_embeddings"] = rope.original_context;
  return config;
}

// Keys of transformers' LlamaConfig, as versions 4 write them and versions 5 read them.
nlohmann::ordered_json llama_config(const nn::ModelOptions& model, const NamedTensors& weights,
                                    const char* dtype) {
  const auto rows_of = [&](const char* name) {
    return std::ranges::find(weights, name, [](const auto& item) { return item.first; })
        ->second.size(0);
  };
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", rows_of("model.embed_tokens.weight")},
          {"hidden_size", model.width},
          {"intermediate_size", rows_of("model.layers.0.mlp.gate_proj.weight")},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads == 0 ? model.heads : model.kv_heads},
          {"hidden_act", "silu"},
          {"max_position_embeddings", model.context},
          {"initializer_range", 0.02},
          {"rms_norm_eps", model.norm_eps},
          {"rope_theta", model.rope.theta},
          {"rope_scaling", rope_config(model.rope)},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", model.tie_word_embeddings},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"torch_dtype", dtype}};
}

}  // namespace

void save_hugging_face(const std::filesystem::path& folder, const NamedTensors& weights,
                       const nn::ModelOptions& options) {
  const auto family = options.name.empty() ? "" : nn::model_family(options.name);
  if (family != "gpt" && family != "llama") {
    throw Error("checkpoint", ErrorKind::usage,
                {.what = "cannot write a model for Hugging Face's transformers",
                 .got = options.name.empty() ? "a module of a program" : options.name,
                 .expected = "gpt, which is their GPT-2, or llama",
                 .hint = "without --hf, models of images are written under torchvision's names"});
  }
  auto model = nn::with_sizes(options);
  model.lora = {};
  if (family == "gpt") {
    model.width = model.layers = kFromFile;
    take_sizes(model, weights, folder);
  }
  Shapes own, given;
  for (const auto& [name, tensor] : model_state(*nn::make_model(model))) {
    own.emplace_back(name, tensor.sizes().vec());
  }
  for (const auto& [name, tensor] : weights) given.emplace_back(name, tensor.sizes().vec());
  require_fit(own, given, "the checkpoint");
  const char* const dtype = dtype_of(weights);
  const auto config =
      family == "gpt" ? gpt_config(model, dtype) : llama_config(model, weights, dtype);
  make_folder(folder);
  save_safetensors(folder / "model.safetensors", weights, {{"format", "pt"}});
  write_file_atomically(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace troika::checkpoint
