#include "troika/nn/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/dense.h"
#include "troika/nn/dropout.h"
#include "troika/nn/linear.h"
#include "troika/nn/model.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

namespace {

using ModulePointer = std::shared_ptr<torch::nn::Module>;

[[noreturn]] void refuse_adapters(const std::string& what, const std::string& got,
                                  const std::string& expected, const std::string& hint = "") {
  throw Error("nn", ErrorKind::usage,
              {.what = what, .got = got, .expected = expected, .hint = hint});
}

// A layer that can have an adapter.
struct Layer {
  std::string name;
  ModulePointer module;
  at::Tensor weight;
  bool is_conv1d = false;

  int64_t in() const { return weight.size(is_conv1d ? 0 : 1); }
  int64_t out() const { return weight.size(is_conv1d ? 1 : 0); }
};

std::optional<Layer> as_layer(const std::string& name, const ModulePointer& module) {
  if (auto* const linear = dynamic_cast<Linear*>(module.get())) {
    return Layer{name, module, linear->weight, false};
  }
  if (auto* const dense = dynamic_cast<Conv1D*>(module.get())) {
    return Layer{name, module, dense->weight(), true};
  }
  return std::nullopt;
}

// Whether the last block's output layer reads the weights of this module, whose forward pass is
// then not called.
bool is_of_output_layer(const Model& model, const std::string& name) {
  return model.has_output_layer() && owns(model.blocks().back(), name);
}

// The layers of a model that can have adapters, and the names of the other modules.
struct Layers {
  std::vector<Layer> possible;
  std::vector<std::pair<std::string, ModulePointer>> others;
};

Layers layers_of(const Model& model) {
  Layers result;
  for (const auto& entry : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    auto layer = as_layer(entry.key(), entry.value());
    if (layer && !is_of_output_layer(model, entry.key())) {
      result.possible.push_back(*std::move(layer));
    } else {
      result.others.emplace_back(entry.key(), entry.value());
    }
  }
  return result;
}

// Whether the pattern's parts are those at the end of the name.
bool is_end_of(const std::string& pattern, const std::string& name) {
  const auto parts = split(pattern, '.'), of_name = split(name, '.');
  if (parts.size() > of_name.size()) return false;
  return std::equal(parts.rbegin(), parts.rend(), of_name.rbegin(),
                    [](const auto& part, const auto& own) { return part == "*" || part == own; });
}

bool is_libtorch_linear(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::LinearImpl*>(&module) &&
         !dynamic_cast<const Linear*>(&module);
}

// Says why a module that a pattern names cannot have an adapter.
[[noreturn]] void refuse_module(const std::string& pattern, const std::string& name,
                                const torch::nn::Module& module) {
  const auto what = fmt::format("{} of lora.target_modules cannot have adapters", pattern);
  if (is_libtorch_linear(module)) {
    refuse_adapters(what, name + ", a torch::nn::Linear", "an nn::Linear or nn::Conv1D",
                    "they are the same layers, with hooks");
  }
  if (dynamic_cast<const Linear*>(&module)) {
    refuse_adapters(what, name + ", whose weight the output layer reads",
                    "a layer whose forward pass runs");
  }
  refuse_adapters(what, fmt::format("{}, a {}", name, module.name()),
                  "a linear layer: nn::Linear or nn::Conv1D");
}

// The last parts of names, each once, in the order of the model.
std::vector<std::string> last_parts(const std::vector<Layer>& layers) {
  std::vector<std::string> result;
  for (const auto& layer : layers) {
    auto last = split(layer.name, '.').back();
    if (std::ranges::find(result, last) == result.end()) result.push_back(std::move(last));
  }
  return result;
}

std::vector<Layer> targets_of(const Model& model, const LoraOptions& options) {
  auto [possible, others] = layers_of(model);
  const bool takes_all = std::ranges::count(options.target_modules, kAllLinear) > 0;
  if (options.target_modules.empty() || (takes_all && options.target_modules.size() > 1)) {
    refuse_adapters("lora.target_modules names no layers, or all and others",
                    fmt::format("[{}]", fmt::join(options.target_modules, ", ")),
                    fmt::format("names of linear layers, or {} alone", kAllLinear));
  }
  if (takes_all) {
    for (const auto& [name, module] : others) {
      if (is_libtorch_linear(*module) && !is_of_output_layer(model, name)) {
        refuse_module(kAllLinear, name, *module);
      }
    }
    if (possible.empty()) {
      refuse_adapters("the model has no layer for an adapter", "no nn::Linear and no nn::Conv1D",
                      "one beside the output layer");
    }
    return possible;
  }
  std::set<std::string> chosen;
  for (const auto& pattern : options.target_modules) {
    bool matches = false;
    for (const auto& layer : possible) {
      if (!is_end_of(pattern, layer.name)) continue;
      chosen.insert(layer.name);
      matches = true;
    }
    for (const auto& [name, module] : others) {
      if (!matches && is_end_of(pattern, name)) refuse_module(pattern, name, *module);
    }
    if (!matches) {
      refuse_adapters(fmt::format("{} of lora.target_modules names no layer", pattern),
                      fmt::format("a model whose linear layers end in {}",
                                  fmt::join(last_parts(possible), ", ")),
                      fmt::format("one of these ends, a full name, or {}", kAllLinear));
    }
  }
  std::erase_if(possible, [&](const Layer& layer) { return !chosen.contains(layer.name); });
  return possible;
}

void require_options(const LoraOptions& options) {
  if (options.rank < 1) {
    refuse_adapters(options.rank < 0 ? "lora.rank is too small"
                                     : "there are options of adapters, but lora.rank is 0",
                    std::to_string(options.rank), "a rank of at least 1");
  }
  if (!(options.alpha > 0) || !(options.dropout >= 0 && options.dropout < 1)) {
    refuse_adapters("options of adapters are out of range",
                    fmt::format("lora.alpha {}, lora.dropout {}", options.alpha, options.dropout),
                    "alpha > 0, and 0 <= dropout < 1");
  }
}

void require_adaptable(const Model& model) {
  for (const auto& entry : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    if (adapter_part(entry.key())) {
      refuse_adapters("the model already has adapters", entry.key(), "a model without adapters",
                      "nn::merge_adapters() merges them");
    }
    if (dynamic_cast<const BatchNormImpl*>(entry.value().get())) {
      refuse_adapters("a model with adapters has no batch norms",
                      fmt::format("{}, whose statistics training changes", entry.key()),
                      "a model whose layers training leaves as they are");
    }
  }
}

void add_adapter(const Layer& layer, const LoraOptions& options) {
  auto a = std::make_shared<Linear>(layer.in(), options.rank, /*deviation=*/0.0);
  auto b = std::make_shared<Linear>(options.rank, layer.out(), /*deviation=*/0.0);
  torch::nn::init::kaiming_uniform_(a->weight, std::sqrt(5.0));
  torch::nn::init::zeros_(b->weight);
  const auto dropout = options.dropout > 0 ? std::make_shared<Dropout>(options.dropout) : nullptr;
  if (dropout) layer.module->register_module(kLoraDropout, dropout);
  layer.module->register_module(kLoraA, a);
  layer.module->register_module(kLoraB, b);
  for (const auto& part : {a, b}) {
    part->train(layer.module->is_training());
    const bool is_alike = part->weight.device() == layer.weight.device() &&
                          part->weight.scalar_type() == layer.weight.scalar_type();
    if (!is_alike) part->to(layer.weight.device(), layer.weight.scalar_type());
  }
  if (dropout) dropout->train(layer.module->is_training());
  dynamic_cast<Hooked&>(*layer.module)
      .add_branch([a, b, dropout, scaling = options.scaling()](const at::Tensor& x) {
        return b->forward(a->forward(dropout ? dropout->forward(x) : x).mul(scaling));
      });
}

}  // namespace

double LoraOptions::scaling() const {
  const auto divisor = static_cast<double>(rank);
  return alpha / (use_rslora ? std::sqrt(divisor) : divisor);
}

std::optional<AdapterPart> adapter_part(std::string_view module) {
  for (const std::string_view part : {kLoraA, kLoraB, kLoraDropout}) {
    if (module.size() <= part.size() + 1 || !module.ends_with(part)) continue;
    const auto layer = module.substr(0, module.size() - part.size());
    if (layer.back() != '.') continue;
    return AdapterPart{std::string(layer.substr(0, layer.size() - 1)), part};
  }
  return std::nullopt;
}

bool is_adapter_parameter(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot != std::string_view::npos && adapter_part(name.substr(0, dot)).has_value();
}

void add_adapters(Model& model, const LoraOptions& options) {
  if (options == LoraOptions{}) return;
  require_options(options);
  require_adaptable(model);
  const auto layers = targets_of(model, options);
  for (const auto& [name, parameter] : named_parameters(model)) parameter.requires_grad_(false);
  for (const auto& layer : layers) add_adapter(layer, options);
  model.set_lora(options);
}

void merge_adapters(Model& model, double scaling) {
  const at::NoGradGuard no_grad;
  for (const auto& entry : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const auto layer = as_layer(entry.key(), entry.value());
    if (!layer) continue;
    const auto children = layer->module->named_children();
    const auto* const a = children.find(kLoraA);
    const auto* const b = children.find(kLoraB);
    if (!a || !b) continue;
    const auto wide = [](const ModulePointer& part) {
      return dynamic_cast<const Linear&>(*part).weight.to(at::kDouble);
    };
    const at::Tensor change = at::mm(wide(*b), wide(*a)).mul(scaling);
    layer->weight.copy_(layer->weight.to(at::kDouble) + (layer->is_conv1d ? change.t() : change));
    dynamic_cast<Hooked&>(*layer->module).add_branch(nullptr);
    for (const char* const part : {kLoraA, kLoraB, kLoraDropout}) {
      if (children.contains(part)) layer->module->unregister_module(part);
    }
  }
  model.set_lora({});
}

std::vector<std::string> adapted_layers(const Model& model) {
  std::vector<std::string> names;
  for (const auto& entry : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const auto part = adapter_part(entry.key());
    if (part && part->part == kLoraA) names.push_back(part->layer);
  }
  return names;
}

std::vector<std::string> adapter_targets(const Model& model) {
  const auto adapted = adapted_layers(model);
  std::vector<std::string> ends;
  for (const auto& name : adapted) {
    auto last = split(name, '.').back();
    if (std::ranges::find(ends, last) == ends.end()) ends.push_back(std::move(last));
  }
  for (const auto& entry : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const auto last = split(entry.key(), '.').back();
    const bool is_meant = std::ranges::find(adapted, entry.key()) != adapted.end();
    if (!is_meant && std::ranges::find(ends, last) != ends.end()) return adapted;
  }
  return ends;
}

}  // namespace troika::nn
