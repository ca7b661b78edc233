#include "troika/checkpoint/model_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/compat/torch.h"

namespace troika::checkpoint {

namespace {

void fill(int64_t& size, int64_t found) {
  if (size == kFromFile) size = found;
}

// Returns the tensor with this name after any prefix; undefined if there is none.
at::Tensor tensor_of(const NamedTensors& tensors, std::string_view name) {
  for (const auto& [full, tensor] : tensors) {
    if (full == name || full.ends_with(fmt::format(".{}", name))) return tensor;
  }
  return {};
}

// Counts the numbers from 0 on that follow `list` in names such as "transformer.h.11.ln_1.weight".
int64_t count_of(const NamedTensors& tensors, const std::string& list) {
  int64_t count = 0;
  while (tensor_of(tensors, fmt::format("{}.{}.weight", list, count)).defined() ||
         tensor_of(tensors, fmt::format("{}.{}.ln_1.weight", list, count)).defined() ||
         tensor_of(tensors, fmt::format("{}.{}.input_layernorm.weight", list, count)).defined()) {
    ++count;
  }
  return count;
}

[[noreturn]] void refuse_model(const std::filesystem::path& file, const std::string& what,
                               const std::string& got, const std::string& expected) {
  throw Error("checkpoint", ErrorKind::usage,
              {.what = file.string() + " " + what, .got = got, .expected = expected});
}

// Hugging Face's config.json of a model.
struct HuggingFaceConfig {
  std::filesystem::path file;
  nlohmann::json json;
  std::string other;  // names models that cannot be taken, for messages
};

// Reads config.json beside `weights`, which must have a number `heads`.
HuggingFaceConfig read_config(const std::filesystem::path& weights, const std::string& model,
                              const char* heads, const std::string& other) {
  const auto config = weights.parent_path() / "config.json";
  if (!std::filesystem::exists(config)) {
    throw Error(
        "checkpoint", ErrorKind::usage,
        {.what = fmt::format("weights of {} do not contain the number of attention heads", model),
         .got = "no config.json beside " + weights.string(),
         .expected = fmt::format("one with {}", heads),
         .hint = "give --model.heads"});
  }
  auto json = nlohmann::json::parse(read_file(config), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(heads) || !json[heads].is_number_unsigned() ||
      json[heads] == 0) {
    refuse_model(config, "has no number of attention heads",
                 fmt::format("another {}, or no JSON", heads),
                 fmt::format("an object with a number {}", heads));
  }
  return {config, std::move(json), other};
}

// Throws Error(usage) unless the value of `key`, or `usual` if it is absent, is one of `known`.
void require_value(const HuggingFaceConfig& config, const char* key, const nlohmann::json& usual,
                   const std::vector<nlohmann::json>& known) {
  const auto found = config.json.value(key, usual);
  if (std::ranges::count(known, found)) return;
  refuse_model(config.file, fmt::format("describes a {}: {}", config.other, key), found.dump(),
               known.front().dump());
}

int64_t configured_gpt_heads(const std::filesystem::path& file) {
  const auto config = read_config(file, "gpt", "n_head", "GPT-2 that gpt is not");
  require_value(config, "activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  require_value(config, "layer_norm_epsilon", 1e-5, {1e-5});
  require_value(config, "scale_attn_weights", true, {true});
  require_value(config, "scale_attn_by_inverse_layer_idx", false, {false});
  return config.json["n_head"].get<int64_t>();
}

void take_gpt(nn::ModelOptions& options, const NamedTensors& tensors,
              const std::filesystem::path& file) {
  const auto tokens = tensor_of(tensors, "wte.weight"), places = tensor_of(tensors, "wpe.weight");
  if (!tokens.defined() || !places.defined() || tokens.dim() != 2 || places.dim() != 2) {
    refuse_model(file, "has no weights of GPT-2", "no wte.weight and wpe.weight of two dimensions",
                 "names of Hugging Face's GPT-2");
  }
  options.vocab_size = tokens.size(0);
  options.context = places.size(0);
  fill(options.width, tokens.size(1));
  fill(options.layers, count_of(tensors, "h"));
  if (options.heads == kFromFile) options.heads = configured_gpt_heads(file);
}

// Returns the number under `key`, or `usual` if there is none. Throws Error(usage) for no number.
double number_of(const HuggingFaceConfig& config, const nlohmann::json& object, const char* key,
                 double usual) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return usual;
  if (!found->is_number())
    refuse_model(config.file, fmt::format("has no number {}", key), found->dump(), "a number");
  return found->get<double>();
}

// Reads rope_parameters (transformers 5), or rope_theta and rope_scaling (before).
nn::RopeOptions configured_rope(const HuggingFaceConfig& config) {
  nn::RopeOptions rope;
  const auto object_at = [&](const char* key) {
    const auto found = config.json.find(key);
    return found != config.json.end() && found->is_object() ? *found : nlohmann::json::object();
  };
  nlohmann::json scaling = object_at("rope_scaling");
  scaling.update(object_at("rope_parameters"));
  rope.theta = number_of(config, scaling, "rope_theta",
                         number_of(config, config.json, "rope_theta", rope.theta));
  const auto type = scaling.value("rope_type", scaling.value("type", nlohmann::json("default")));
  const auto& known = nn::rope_scalings();
  if (!type.is_string() || !std::ranges::count(known, type.get<std::string>())) {
    refuse_model(config.file, fmt::format("describes a {}: rope_type", config.other), type.dump(),
                 fmt::format("one of {}", fmt::join(known, ", ")));
  }
  rope.scaling = type.get<std::string>();
  rope.factor = number_of(config, scaling, "factor", rope.factor);
  rope.low_freq_factor = number_of(config, scaling, "low_freq_factor", rope.low_freq_factor);
  rope.high_freq_factor = number_of(config, scaling, "high_freq_factor", rope.high_freq_factor);
  rope.original_context =
      std::llround(number_of(config, scaling, "original_max_position_embeddings",
                             static_cast<double>(rope.original_context)));
  return rope;
}

void take_llama_config(nn::ModelOptions& options, const std::filesystem::path& file) {
  const auto config = read_config(file, "llama", "num_attention_heads", "Llama that llama is not");
  fill(options.heads, config.json["num_attention_heads"].get<int64_t>());
  require_value(config, "hidden_act", "silu", {"silu"});
  require_value(config, "attention_bias", false, {false});
  require_value(config, "mlp_bias", false, {false});
  require_value(config, "head_dim", nullptr, {options.width / options.heads, nullptr});
  options.norm_eps = number_of(config, config.json, "rms_norm_eps", 1e-6);
  options.context = std::llround(number_of(config, config.json, "max_position_embeddings",
                                           static_cast<double>(options.context)));
  options.rope = configured_rope(config);
}

void take_llama(nn::ModelOptions& options, const NamedTensors& tensors,
                const std::filesystem::path& file) {
  const auto tokens = tensor_of(tensors, "embed_tokens.weight");
  const auto keys = tensor_of(tensors, "layers.0.self_attn.k_proj.weight");
  const auto gate = tensor_of(tensors, "layers.0.mlp.gate_proj.weight");
  const auto is_matrix = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() == 2;
  };
  if (!is_matrix(tokens) || !is_matrix(keys) || !is_matrix(gate)) {
    refuse_model(file, "has no weights of Llama",
                 "no embed_tokens, self_attn.k_proj and mlp.gate_proj of two dimensions",
                 "names of Hugging Face's Llama");
  }
  options.vocab_size = tokens.size(0);
  fill(options.width, tokens.size(1));
  fill(options.layers, count_of(tensors, "layers"));
  options.ffn_width = gate.size(0);
  options.tie_word_embeddings = !tensor_of(tensors, "lm_head.weight").defined();
  const bool has_config = std::filesystem::exists(file.parent_path() / "config.json");
  if (has_config || options.heads == kFromFile) take_llama_config(options, file);
  options.kv_heads = keys.size(0) / std::max<int64_t>(options.width / options.heads, 1);
}

// Sets the size of a square image with `numbers` values, of three channels or one.
void take_image(nn::ModelOptions& options, int64_t numbers) {
  for (const int64_t channels : {3, 1}) {
    const auto side = static_cast<int64_t>(
        std::llround(std::sqrt(static_cast<double>(numbers) / static_cast<double>(channels))));
    if (side * side * channels != numbers) continue;
    options.in_channels = channels;
    options.image_size = side;
    return;
  }
}

void take_mlp(nn::ModelOptions& options, const NamedTensors& tensors) {
  fill(options.hidden_layers, count_of(tensors, "layers"));
  const auto hidden = tensor_of(tensors, "layers.0.weight");
  const auto head = tensor_of(tensors, "head.weight");
  const auto& first = hidden.defined() ? hidden : head;
  if (first.defined() && first.dim() == 2) {
    fill(options.hidden_width, first.size(0));
    take_image(options, first.size(1));
  }
}

void take_unet(nn::ModelOptions& options, const NamedTensors& tensors) {
  const auto first = tensor_of(tensors, "encoder.0.0.conv.weight");
  const auto head = tensor_of(tensors, "head.weight");
  if (first.defined() && first.dim() == 4) fill(options.base_width, first.size(0));
  if (head.defined() && head.dim() == 4) options.num_classes = head.size(0);
  int64_t levels = 0, convolutions = 0;
  while (tensor_of(tensors, fmt::format("encoder.{}.0.conv.weight", levels)).defined()) ++levels;
  while (tensor_of(tensors, fmt::format("encoder.0.{}.conv.weight", convolutions)).defined()) {
    ++convolutions;
  }
  fill(options.depth, levels);
  fill(options.convolutions, convolutions);
}

void take_s2vt(nn::ModelOptions& options, const NamedTensors& tensors) {
  const auto frames = tensor_of(tensors, "embed_frames.weight");
  const auto words = tensor_of(tensors, "embed_words.weight");
  const auto hidden = tensor_of(tensors, "frame_lstm.0.weight_hh_l0");
  if (frames.defined() && frames.dim() == 2) options.feature_width = frames.size(1);
  if (words.defined() && words.dim() == 2) {
    options.vocab_size = words.size(0);
    fill(options.width, words.size(1));
  }
  if (hidden.defined() && hidden.dim() == 2) fill(options.hidden_width, hidden.size(1));
  int64_t layers = 0;
  while (tensor_of(tensors, fmt::format("frame_lstm.{}.weight_hh_l0", layers)).defined()) ++layers;
  fill(options.lstm_layers, layers);
}

}  // namespace

void take_sizes(nn::ModelOptions& options, const NamedTensors& tensors,
                const std::filesystem::path& file) {
  options.name = nn::model_family(options.name);
  if (options.name == "gpt") take_gpt(options, tensors, file);
  if (options.name == "llama") take_llama(options, tensors, file);
  if (options.name == "mlp") take_mlp(options, tensors);
  if (options.name == "unet") take_unet(options, tensors);
  if (options.name == "s2vt") take_s2vt(options, tensors);
  // Sizes that are still unknown get their defaults. Either this model does not use them, or the
  // file does not fit the model and loading it will fail.
  const nn::ModelOptions defaults;
  for (const auto size : kGivenSizes) fill(options.*size, defaults.*size);
  const auto kind = nn::sample_kind(options.name);
  if (kind == nn::SampleKind::text || kind == nn::SampleKind::videos) return;
  if (nn::has_convolutions(options.name)) {
    constexpr int64_t kUsualImage = 299;  // no model needs more, but for U-Nets of many levels
    options.image_size = std::max(kUsualImage, int64_t{2} << std::min<int64_t>(options.depth, 16));
  }
  auto base = options;
  base.lora = {};
  const auto own = model_state(*nn::make_model(base));
  const auto input = tensor_of(tensors, own.front().first);  // "conv1.weight"
  if (input.defined() && input.dim() == 4) options.in_channels = input.size(1);
  const auto output = tensor_of(tensors, own.back().first);  // "fc.bias"
  if (output.defined() && output.dim() == 1) options.num_classes = output.size(0);
}

}  // namespace troika::checkpoint
