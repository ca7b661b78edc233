#include "troika/parallel/context/context_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/dense.h"
#include "troika/nn/linear.h"
#include "troika/nn/rms_norm.h"
#include "troika/parallel/context/head_attention.h"
#include "troika/parallel/tensor/parameter_cuts.h"
#include "troika/parallel/tensor/token_blocks.h"

namespace troika::parallel {

namespace {

[[noreturn]] void refuse_model(std::string got, std::string expected) {
  throw Error("parallel", ErrorKind::usage,
              {.what = "the model cannot be cut by tokens over a context axis",
               .got = std::move(got),
               .expected = std::move(expected)});
}

constexpr const char* kTakenModules = "linear layers, embeddings, norms and nn::Dropout";

template <typename... Modules>
bool is_one_of(const torch::nn::Module& module) {
  return (dynamic_cast<const Modules*>(&module) || ...);
}

// A ring has one implementation, and the masks of sdpa are not keyed.
void require_attention(const nn::Model& model, layout::ContextMethod method) {
  const bool has_dropout = model.options() && model.options()->dropout > 0;
  const auto refuse = [](const char* what, nn::Attention got, const char* expected) {
    throw Error("parallel", ErrorKind::usage,
                {.what = what,
                 .got = "model.attn_implementation " + nn::attention_name(got),
                 .expected = expected});
  };
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const auto* const attends = dynamic_cast<const nn::AttentionModule*>(module.get());
    if (!attends || attends->attention() == nn::Attention::automatic) continue;
    if (method == layout::ContextMethod::ring) {
      refuse("context method ring computes attention by itself", attends->attention(),
             "auto, or the method all_to_all");
    } else if (has_dropout && attends->attention() == nn::Attention::sdpa) {
      refuse("dropout of attention over a context axis is keyed", attends->attention(),
             "auto or eager");
    }
  }
}

bool computes_tokens_alone(const torch::nn::Module& module) {
  // Its masks are not keyed, so they are not those of one process.
  if (is_one_of<torch::nn::DropoutImpl>(module)) return false;
  return module.parameters(/*recurse=*/false).empty() ||
         is_one_of<nn::Linear, nn::Conv1D, nn::Embedding, nn::RmsNorm, torch::nn::LinearImpl,
                   torch::nn::EmbeddingImpl, torch::nn::LayerNormImpl>(module);
}

void require_heads(const std::vector<RuledModule>& modules, int ranks, int tensor_ranks) {
  for (const auto& of : modules) {
    const auto& rule = of.rule;
    if (rule.split != Split::column || rule.units == 0) continue;
    const int64_t units = std::max<int64_t>(1, rule.units / tensor_ranks);
    if (rule.shares_units) {
      require_divisible_heads(of.name, ranks, units, ranks);
    } else {
      require_divisible_heads(of.name, units, units, ranks);
    }
  }
}

}  // namespace

size_t require_context(const nn::Model& model, const SplitTable& table, int ranks,
                       layout::ContextMethod method, int tensor_ranks) {
  const auto modules = ruled_modules(model, table, "context");
  for (const auto& of : model.named_modules("", /*include_self=*/false)) {
    if (computes_tokens_alone(*of.value())) continue;
    refuse_model(fmt::format("module {}", of.key()), kTakenModules);
  }
  const auto embedding = embedding_block(model, modules);
  const bool attends = std::ranges::any_of(
      model.modules(/*include_self=*/false),
      [](const auto& of) { return dynamic_cast<const nn::AttentionModule*>(of.get()) != nullptr; });
  if (!embedding || !attends) {
    refuse_model(fmt::format("block {}, and no {}", model.blocks().front().name,
                             embedding ? "nn::AttentionModule" : "nn::Embedding of tokens"),
                 "a language model, as gpt or llama");
  }
  if (model.input_names().size() != 1 || !model.has_output_layer()) {
    refuse_model(
        fmt::format("block {}, of {} inputs {} output layer", model.blocks().back().name,
                    model.input_names().size(), model.has_output_layer() ? "with an" : "without"),
        "one input, and a last block with an nn::OutputLayer");
  }
  require_attention(model, method);
  if (method == layout::ContextMethod::all_to_all) require_heads(modules, ranks, tensor_ranks);
  return *embedding;
}

}  // namespace troika::parallel
