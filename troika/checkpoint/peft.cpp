#include "troika/checkpoint/peft.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/compat/torch.h"
#include "troika/nn/dense.h"
#include "troika/nn/model.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"

namespace troika::checkpoint {

namespace {

using nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
// PEFT wraps the model twice, in a PeftModel and in a LoraModel.
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kWeight = ".weight";

[[noreturn]] void refuse_adapter(const std::filesystem::path& file, const std::string& what,
                                 const std::string& got, const std::string& expected) {
  throw Error("checkpoint", ErrorKind::usage,
              {.what = file.string() + " " + what, .got = got, .expected = expected});
}

bool has_conv1d(const nn::Model& model) {
  const auto modules = model.modules(/*include_self=*/false);
  return std::ranges::any_of(modules, [](const auto& module) {
    return dynamic_cast<const nn::Conv1D*>(module.get()) != nullptr;
  });
}

bool is_language_model(const nn::Model& model) {
  return model.options() && nn::sample_kind(model.options()->name) == nn::SampleKind::text;
}

// A whole number without a fraction, as PEFT writes it.
json number(double value) {
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? json(whole) : json(value);
}

// Throws unless the value of `key` is one that an adapter without that feature has.
void require_without(const std::filesystem::path& file, const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null() || *found == false || *found == "none") return;
  if ((found->is_array() || found->is_object()) && found->empty()) return;
  refuse_adapter(file, fmt::format("describes an adapter that is not supported: {}", key),
                 found->dump(), "an adapter without it");
}

nn::LoraOptions read_options(const std::filesystem::path& file) {
  const auto config = json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object() || config.value("peft_type", json()) != "LORA") {
    refuse_adapter(file, "does not describe a LoRA adapter",
                   config.is_object() ? config.value("peft_type", json()).dump() : "no JSON object",
                   "peft_type \"LORA\"");
  }
  for (const auto* const key :
       {"bias", "use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias",
        "use_qalora", "alora_invocation_tokens", "trainable_token_indices", "target_parameters",
        "megatron_config", "layer_replication"}) {
    require_without(file, config, key);
  }
  // Other ways to begin change the base's weights: olora, pissa, corda, loftq.
  const auto begins = config.value("init_lora_weights", json(true));
  if (!begins.is_boolean() && begins != "gaussian" && begins != "eva" && begins != "orthogonal") {
    refuse_adapter(file, "describes an adapter whose base PEFT changes: init_lora_weights",
                   begins.dump(), "true, false, gaussian, eva or orthogonal");
  }
  const auto rank = config.value("r", json());
  const auto alpha = config.value("lora_alpha", json());
  const auto dropout = config.value("lora_dropout", json(0.0));
  const auto rslora = config.value("use_rslora", json(false));
  if (!rank.is_number_unsigned() || rank == 0 || !alpha.is_number() || !dropout.is_number() ||
      !rslora.is_boolean()) {
    refuse_adapter(file, "has no usable numbers",
                   fmt::format("r {}, lora_alpha {}, lora_dropout {}, use_rslora {}", rank.dump(),
                               alpha.dump(), dropout.dump(), rslora.dump()),
                   "a rank of at least 1, numbers, and true or false");
  }
  return {.rank = rank.get<int64_t>(),
          .alpha = alpha.get<double>(),
          .dropout = dropout.get<double>(),
          .use_rslora = rslora.get<bool>(),
          .target_modules = {}};
}

}  // namespace

void save_peft(const std::filesystem::path& folder, const nn::Model& model,
               const nn::LoraOptions& options, const std::string& base) {
  const auto targets = nn::adapter_targets(model);
  if (targets.empty()) {
    throw Error("checkpoint", ErrorKind::usage,
                {.what = "cannot write adapters for PEFT",
                 .got = "a model without adapters",
                 .expected = "one that was trained with lora.rank"});
  }
  const nlohmann::ordered_json config{
      {"peft_type", "LORA"},
      {"task_type", is_language_model(model) ? json("CAUSAL_LM") : json()},
      {"base_model_name_or_path", base.empty() ? json() : json(base)},
      {"r", options.rank},
      {"lora_alpha", number(options.alpha)},
      {"lora_dropout", options.dropout},
      {"use_rslora", options.use_rslora},
      {"target_modules", targets},
      {"fan_in_fan_out", has_conv1d(model)},
      {"bias", "none"},
      {"init_lora_weights", true},
      {"modules_to_save", nullptr},
      {"inference_mode", true}};
  NamedTensors tensors;
  for (const auto& [name, tensor] : nn::named_parameters(model)) {
    if (nn::is_adapter_parameter(name)) tensors.emplace_back(std::string(kPrefix) + name, tensor);
  }
  make_folder(folder);
  save_safetensors(folder / kTensors, tensors, {{"format", "pt"}});
  write_file_atomically(folder / kConfig, config.dump(2) + "\n");
}

PeftAdapter load_peft(const std::filesystem::path& folder) {
  PeftAdapter result{.options = read_options(folder / kConfig), .tensors = {}};
  const auto file = folder / kTensors;
  for (auto& [name, tensor] : load_safetensors(file)) {
    auto own = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string();
    const auto part = own.ends_with(kWeight)
                          ? nn::adapter_part(own.substr(0, own.size() - kWeight.size()))
                          : std::nullopt;
    if (!part || part->part == nn::kLoraDropout) {
      refuse_adapter(
          file, "has a tensor that belongs to no adapter of a linear layer", name,
          fmt::format("{}LAYER.{}.weight or .{}.weight", kPrefix, nn::kLoraA, nn::kLoraB));
    }
    const auto& layer = part->layer;
    auto& targets = result.options.target_modules;
    if (std::ranges::find(targets, layer) == targets.end()) targets.push_back(layer);
    result.tensors.emplace_back(std::move(own), std::move(tensor));
  }
  return result;
}

}  // namespace troika::checkpoint
