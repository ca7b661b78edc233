#include "troika/checkpoint/foreign_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/compat/torch.h"
#include "troika/nn/lora.h"

namespace troika::checkpoint {

namespace {

constexpr std::string_view kParallel = "module.";
constexpr std::string_view kCounter = "num_batches_tracked";
const std::string kOutput = "lm_head.weight";

// The names of a language model.
struct LanguageNames {
  std::string prefix;     // of all tensors but lm_head's
  std::string layers;     // after the prefix
  std::string embedding;  // in full
};
const LanguageNames kLanguages[] = {{"transformer.", "h.", "transformer.wte.weight"},
                                    {"model.", "layers.", "model.embed_tokens.weight"}};

using ByName = std::map<std::string, at::Tensor>;

void strip_prefix(NamedTensors& tensors, std::string_view prefix) {
  const auto has_it = [&](const auto& item) { return item.first.starts_with(prefix); };
  if (!std::all_of(tensors.begin(), tensors.end(), has_it)) return;
  for (auto& [name, tensor] : tensors) name.erase(0, prefix.size());
}

// GPT2Model is the submodule `transformer` of GPT2LMHeadModel, and LlamaModel is the submodule
// `model` of LlamaForCausalLM.
void add_prefix(NamedTensors& tensors, const ByName& model, const LanguageNames& names) {
  for (auto& [name, tensor] : tensors) {
    const std::string whole = names.prefix + name;
    const bool is_inside = model.contains(whole) || name.starts_with(names.layers);
    if (is_inside && !model.contains(name)) name = whole;
  }
}

bool is_left_out(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq") || name.starts_with("AuxLogits.");
}

void check_tied(const ByName& tensors, const LanguageNames& names, std::string_view origin) {
  const auto output = tensors.find(kOutput), embedding = tensors.find(names.embedding);
  if (output == tensors.end() || embedding == tensors.end()) return;
  if (output->second.equal(embedding->second)) return;
  throw Error("checkpoint", ErrorKind::usage,
              {.what = fmt::format("the output of {} is not its token embedding", origin),
               .got = fmt::format("`{}` of other numbers than `{}`", kOutput, names.embedding),
               .expected = "a model with tied weights",
               .hint = "model.tie_word_embeddings=false"});
}

bool is_conv1d(std::string_view name) {
  return name.ends_with(".c_attn.weight") || name.ends_with(".c_proj.weight") ||
         name.ends_with(".c_fc.weight");
}

// Decides by the layers that are not square.
bool is_transposed(const ByName& tensors, const ByName& model) {
  return std::any_of(model.begin(), model.end(), [&](const auto& item) {
    const auto& [name, own] = item;
    const auto found = tensors.find(name);
    return is_conv1d(name) && found != tensors.end() && own.size(0) != own.size(1) &&
           found->second.sizes() == own.t().sizes();
  });
}

// Keeps, in both lists, only tensors with the same name and shape in both. `left` lists the other
// names of `model`.
void keep_common(NamedTensors& model, NamedTensors& given, std::string& left) {
  const auto missing_in = [](const ByName& others) {
    return [&others](const auto& item) {
      const auto found = others.find(item.first);
      return found == others.end() || found->second.sizes() != item.second.sizes();
    };
  };
  const ByName all_given(given.begin(), given.end()), all_own(model.begin(), model.end());
  std::vector<std::string> names;
  for (const auto& item : model) {
    if (missing_in(all_given)(item)) names.push_back(item.first);
  }
  left = fmt::format("{}", fmt::join(names, ", "));
  std::erase_if(model, missing_in(all_given));
  std::erase_if(given, missing_in(all_own));
}

}  // namespace

NamedTensors adapt_foreign(const NamedTensors& tensors, const NamedTensors& model,
                           std::string_view origin) {
  const ByName own(model.begin(), model.end());
  NamedTensors result = tensors;
  strip_prefix(result, kParallel);
  for (const auto& names : kLanguages) {
    if (!own.contains(names.embedding)) continue;
    add_prefix(result, own, names);
    const ByName found(result.begin(), result.end());
    if (!own.contains(kOutput)) {
      check_tied(found, names, origin);
    } else if (!found.contains(kOutput) && found.contains(names.embedding)) {
      result.emplace_back(kOutput, found.at(names.embedding));
    }
    const bool transpose = is_transposed(found, own);
    for (auto& [name, tensor] : result) {
      if (transpose && is_conv1d(name) && tensor.dim() == 2) tensor = tensor.t();
    }
  }
  std::erase_if(result, [&](const auto& item) {
    return !own.contains(item.first) && (item.first == kOutput || is_left_out(item.first));
  });
  const ByName given(result.begin(), result.end());
  for (const auto& [name, tensor] : model) {
    if (name.ends_with(kCounter) && !given.contains(name)) result.emplace_back(name, tensor);
  }
  return result;
}

void take_weights(torch::nn::Module& module, const std::filesystem::path& path, bool strict) {
  auto own = model_state(module);
  auto given = adapt_foreign(load_weights(path), own, path.string());
  const auto is_of_adapter = [](const auto& item) { return nn::is_adapter_parameter(item.first); };
  // Weights of the model that is adapted.
  if (std::ranges::none_of(given, is_of_adapter)) std::erase_if(own, is_of_adapter);
  if (!strict) {
    const size_t all = own.size();
    const auto adapters = std::ranges::count_if(given, is_of_adapter);
    std::string left;
    keep_common(own, given, left);
    const auto taken = std::ranges::count_if(given, is_of_adapter);
    if (taken < adapters) {
      log::warn(
          "{} of the {} tensors of adapters in {} are left out, because the model has no such "
          "adapters (lora.rank and lora.target_modules add them)",
          adapters - taken, adapters, path.string());
    }
    if (own.empty()) {
      throw Error("checkpoint", ErrorKind::usage,
                  {.what = "no tensor of " + path.string() + " fits the model", .got = left});
    }
    log::info("{} of the model's {} tensors are those of {}; as they were: {}", own.size(), all,
              path.string(), left.empty() ? "none" : left);
  }
  load_into(own, given, path.string());
}

}  // namespace troika::checkpoint
