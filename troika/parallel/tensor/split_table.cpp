#include "troika/parallel/tensor/split_table.h"

#include <fmt/format.h>

namespace troika::parallel {

namespace {

// Pairs of layers: the first gives columns, and the second sums over them. A last layer without a
// partner is whole.
SplitTable mlp_table(const nn::ModelOptions& options) {
  SplitTable table;
  for (int64_t i = 0; i < options.hidden_layers; ++i) {
    const bool is_column = i % 2 == 0;
    table.push_back({fmt::format("layers.{}", i), is_column ? Split::column : Split::row});
    table.push_back(
        {fmt::format("dropout.{}", i), is_column ? Split::dropout_of_column : Split::whole});
  }
  table.push_back({"head", options.hidden_layers % 2 == 1 ? Split::row : Split::whole});
  return table;
}

SplitTable gpt_table(const nn::ModelOptions& options) {
  const std::string layer = "transformer.h.*.";
  return {{"transformer.wte", Split::vocabulary},
          {"transformer.wpe", Split::whole},
          {"transformer.drop", Split::whole},
          {layer + "ln_1", Split::tokens},
          {layer + "attn.c_attn", Split::column, options.heads, 3},
          {layer + "attn.c_proj", Split::row},
          {layer + "attn.resid_dropout", Split::tokens},
          {layer + "ln_2", Split::tokens},
          {layer + "mlp.c_fc", Split::column},
          {layer + "mlp.c_proj", Split::row},
          {layer + "mlp.dropout", Split::tokens},
          {"transformer.ln_f", Split::tokens},
          {"lm_head", Split::vocabulary}};
}

SplitTable llama_table(const nn::ModelOptions& options) {
  const std::string layer = "model.layers.*.", attention = layer + "self_attn";
  const int64_t kv_heads = options.kv_heads == 0 ? options.heads : options.kv_heads;
  return {{"model.embed_tokens", Split::vocabulary},
          {layer + "input_layernorm", Split::tokens},
          {attention, Split::input},
          {attention + ".q_proj", Split::column, options.heads},
          {attention + ".k_proj", Split::column, kv_heads, 1, true},
          {attention + ".v_proj", Split::column, kv_heads, 1, true},
          {attention + ".o_proj", Split::row},
          {layer + "post_attention_layernorm", Split::tokens},
          {layer + "mlp", Split::input},
          {layer + "mlp.gate_proj", Split::column},
          {layer + "mlp.up_proj", Split::column},
          {layer + "mlp.down_proj", Split::row},
          {"model.norm", Split::tokens},
          {"lm_head", Split::vocabulary}};
}

}  // namespace

SplitTable split_table(const nn::ModelOptions& given) {
  const auto options = nn::with_sizes(given);
  if (options.name == "mlp") return mlp_table(options);
  if (options.name == "gpt") return gpt_table(options);
  if (options.name == "llama") return llama_table(options);
  return {};
}

}  // namespace troika::parallel
