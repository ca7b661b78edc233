// Low-rank adapters (LoRA; Hu et al. 2021, arXiv 2106.09685): the model's own parameters stay as
// they are, and training changes two small matrices beside the weight of each adapted layer.
//
//   auto model = nn::make_model({.name = "llama-tiny"});
//   nn::add_adapters(*model, {.rank = 8, .alpha = 16, .target_modules = {"q_proj", "v_proj"}});
//   // trains only the adapters
//   auto optimizer = optim::make_optimizer(nn::trained_parameters(*model), {.name = "adamw"});
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/state/state_dict.h"

namespace troika::nn {

class Model;

struct LoraOptions {
  int64_t rank = 0;  // 0: no adapters
  double alpha = 16;
  double dropout = 0;  // of the adapters' inputs
  // Rank-stabilized LoRA (Kalajdzievski 2023, arXiv 2312.03732): scaling alpha / sqrt(rank).
  bool use_rslora = false;
  // Names of linear layers, or their ends after a dot, as PEFT's: `q_proj` stands for
  // model.layers.0.self_attn.q_proj and its like. `*` stands for any text between two dots.
  // kAllLinear alone: every linear layer but the output layer.
  std::vector<std::string> target_modules = {"all-linear"};

  // alpha / rank, or with use_rslora alpha / sqrt(rank).
  double scaling() const;

  bool operator==(const LoraOptions&) const = default;
};

inline constexpr const char* kAllLinear = "all-linear";

// The sub-modules of an adapted linear layer, under PEFT's names.
inline constexpr const char* kLoraA = "lora_A";              // weight [rank, in]
inline constexpr const char* kLoraB = "lora_B";              // weight [out, rank]
inline constexpr const char* kLoraDropout = "lora_dropout";  // only if there is dropout

// A sub-module of an adapted layer: the layer's name and one of the names above.
struct AdapterPart {
  std::string layer;
  std::string_view part;
};

// Returns the adapted layer and the part for a module's full name; empty for other modules.
std::optional<AdapterPart> adapter_part(std::string_view module);
// Whether a parameter of this full name belongs to an adapter.
bool is_adapter_parameter(std::string_view name);

// Freezes all parameters of the model, and gives each layer that `target_modules` names an adapter:
// the layer, an nn::Linear or nn::Conv1D, returns x W + b + scaling B A dropout(x). A is drawn as
// PEFT and Hu et al.'s code draw it (Kaiming uniform, from LibTorch's default generator), and B
// is 0, so the model computes the same as before. The layers own the adapters, which have their
// device and type. Does nothing for rank 0. Throws Error(usage), before any change, for options out
// of range, for a pattern without a layer (naming the layers), for layers that cannot be adapted,
// for a model with adapters, and for batch norms, whose statistics training would change.
void add_adapters(Model& model, const LoraOptions& options);

// Adds scaling B A to the weight of each adapted layer, computed in float64 and rounded once, and
// removes the adapters. `scaling` is LoraOptions::scaling(). Parameters stay frozen.
void merge_adapters(Model& model, double scaling);

// Returns the names of the adapted layers, in the order of the model.
std::vector<std::string> adapted_layers(const Model& model);
// Returns the shortest list of target_modules that stands for exactly the adapted layers: last
// parts of names if these stand for no other module, otherwise full names.
std::vector<std::string> adapter_targets(const Model& model);

}  // namespace troika::nn
