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
         tensor_of(tensors, fmt::format("{}.{}.ln_1.weight", list, count)).defined()) {
    ++count;
  }
  return count;
}

[[noreturn]] void refuse_model(const std::filesystem::path& file, const std::string& what,
                               const std::string& got, const std::string& expected) {
  throw Error("checkpoint", ErrorKind::usage,
              {.what = file.string() + " " + what, .got = got, .expected = expected});
}

// Reads the number of heads from Hugging Face's GPT2Config.
int64_t configured_heads(const std::filesystem::path& file) {
  const auto config = file.parent_path() / "config.json";
  if (!std::filesystem::exists(config)) {
    throw Error("checkpoint", ErrorKind::usage,
                {.what = "weights of gpt do not contain the number of attention heads",
                 .got = "no config.json beside " + file.string(),
                 .expected = "one with n_head",
                 .hint = "give --model.heads"});
  }
  const auto text = read_file(config);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("n_head") || !json["n_head"].is_number_unsigned()) {
    refuse_model(config, "has no number of attention heads", "another n_head, or no JSON",
                 "an object with a number n_head");
  }
  const auto require = [&](const char* key, const nlohmann::json& other,
                           const std::vector<nlohmann::json>& known) {
    const auto found = json.value(key, other);
    for (const auto& value : known) {
      if (found == value) return;
    }
    refuse_model(config, std::string("describes a GPT-2 that gpt is not: ") + key, found.dump(),
                 known.front().dump());
  };
  require("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  require("layer_norm_epsilon", 1e-5, {1e-5});
  require("scale_attn_weights", true, {true});
  require("scale_attn_by_inverse_layer_idx", false, {false});
  return json["n_head"].get<int64_t>();
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
  if (options.heads == kFromFile) options.heads = configured_heads(file);
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
  if (options.name == "gpt") take_gpt(options, tensors, file);
  if (options.name == "mlp") take_mlp(options, tensors);
  if (options.name == "unet") take_unet(options, tensors);
  if (options.name == "s2vt") take_s2vt(options, tensors);
  // Sizes that are still unknown get their defaults. Either this model does not use them, or the
  // file does not fit the model and loading it will fail.
  const nn::ModelOptions defaults;
  for (const auto size : kGivenSizes) fill(options.*size, defaults.*size);
  if (options.name == "gpt" || options.name == "s2vt") return;
  if (nn::has_convolutions(options.name)) {
    constexpr int64_t kUsualImage = 299;  // no model needs more, but for U-Nets of many levels
    options.image_size = std::max(kUsualImage, int64_t{2} << std::min<int64_t>(options.depth, 16));
  }
  const auto own = model_state(*nn::make_model(options));
  const auto input = tensor_of(tensors, own.front().first);  // "conv1.weight"
  if (input.defined() && input.dim() == 4) options.in_channels = input.size(1);
  const auto output = tensor_of(tensors, own.back().first);  // "fc.bias"
  if (output.defined() && output.dim() == 1) options.num_classes = output.size(0);
}

}  // namespace troika::checkpoint
