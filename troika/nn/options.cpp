#include "troika/nn/options.h"

#include "troika/base/config.h"
#include "troika/nn/attention.h"

namespace troika::nn {

using config::above;
using config::at_least;
using config::between;
using config::one_of;
using config::one_of_or_none;

void add_name(config::Table& table, ModelOptions& options) {
  table.add("model.name", &options.name,
            "model; empty in the options of a run whose module comes from a program",
            one_of_or_none(model_names()));
}

void add_sizes(config::Table& table, ModelOptions& options) {
  if (options.name.empty()) return;  // a program's own module has none of these
  table.add("model.dropout", &options.dropout,
            "probability of dropout, for all models except the residual networks and llama; masks "
            "do not depend on the number of ranks",
            between(0.0, 1.0));
  table.add("model.hidden_layers", &options.hidden_layers, "mlp: number of hidden layers",
            at_least(int64_t{0}));
  table.add("model.hidden_width", &options.hidden_width,
            "mlp: width of the hidden layers; s2vt: width of the LSTMs", at_least(int64_t{1}));
  table.add("model.depth", &options.depth, "unet: number of times that the image is halved",
            at_least(int64_t{1}));
  table.add("model.convolutions", &options.convolutions, "unet: number of convolutions per level",
            at_least(int64_t{1}));
  table.add("model.base_width", &options.base_width,
            "unet: channels of the first level; each further level has twice as many",
            at_least(int64_t{2}));
  table.add("model.lstm_layers", &options.lstm_layers,
            "s2vt: number of LSTMs that read frames, and number of LSTMs that write words",
            at_least(int64_t{1}));
  table.add("model.layers", &options.layers, "gpt and llama: number of transformer blocks",
            at_least(int64_t{1}));
  table.add("model.heads", &options.heads, "gpt and llama: number of attention heads",
            at_least(int64_t{1}));
  table.add("model.width", &options.width, "gpt, llama and s2vt: width of the embeddings",
            at_least(int64_t{1}));
  table.add("model.tie_word_embeddings", &options.tie_word_embeddings,
            "gpt and llama: the output matrix is that of the token embedding");
  table.add(
      "model.attn_implementation", &options.attn_implementation,
      "gpt and llama: implementation of attention; eager: matrix products; sdpa: LibTorch's fused "
      "kernel, from LibTorch 2.0 on; auto: the faster one; docs/trainer.md",
      one_of(attention_names(), {{"math", "eager"},
                                 {"products", "eager"},
                                 {"fused", "sdpa"},
                                 {"flash", "sdpa"},
                                 {"flash_attention_2", "sdpa"}}));
  table.add("model.kv_heads", &options.kv_heads,
            "llama: number of heads of keys and values, which divides heads; 0: heads",
            at_least(int64_t{0}));
  table.add("model.ffn_width", &options.ffn_width,
            "llama: width inside of the feed-forward layers; 0: 8/3 of width, rounded up to a "
            "multiple of 256",
            at_least(int64_t{0}));
  table.add("model.norm_eps", &options.norm_eps, "llama: number that norms add to the mean square",
            above(0.0));
  auto& rope = options.rope;
  table.add("model.rope_theta", &rope.theta, "llama: base of the rotary embeddings' frequencies",
            above(0.0));
  table.add("model.rope_scaling", &rope.scaling,
            "llama: change of the frequencies for contexts longer than those of the training; "
            "linear: all are divided by rope_factor; llama3: only the low ones",
            one_of(rope_scalings()));
  table.add("model.rope_factor", &rope.factor, "llama: divisor of rope_scaling", above(0.0));
  table.add("model.rope_low_freq_factor", &rope.low_freq_factor,
            "llama: rope_scaling llama3 divides frequencies of fewer turns than this in "
            "rope_original_context",
            above(0.0));
  table.add("model.rope_high_freq_factor", &rope.high_freq_factor,
            "llama: rope_scaling llama3 leaves frequencies of more turns than this as they are",
            above(0.0));
  table.add("model.rope_original_context", &rope.original_context,
            "llama: context of the training before rope_scaling llama3", at_least(int64_t{1}));
}

void add_lora(config::Table& table, ModelOptions& options) {
  if (options.name.empty()) return;  // a program calls nn::add_adapters()
  auto& lora = options.lora;
  table.add(
      "lora.rank", &lora.rank,
      "train adapters of this rank beside linear layers, and leave the model's own parameters "
      "as they are; 0: no adapters; docs/lora.md",
      at_least(int64_t{0}));
  table.add("lora.alpha", &lora.alpha, "adapters are scaled by alpha / rank", above(0.0));
  table.add("lora.dropout", &lora.dropout, "probability of dropout of the adapters' inputs",
            config::from_to_below(0.0, 1.0));
  table.add("lora.use_rslora", &lora.use_rslora,
            "adapters are scaled by alpha / sqrt(rank) in place of alpha / rank");
  table.add("lora.target_modules", &lora.target_modules,
            "layers that get adapters: names of linear layers or their ends, such as q_proj, where "
            "* stands for any text between two dots; all-linear: all but the output layer");
  table.add_known_as("r", "lora.rank");
  table.add_known_as("lora_r", "lora.rank");
  table.add_known_as("lora_rank", "lora.rank");
  table.add_known_as("lora_alpha", "lora.alpha");
  table.add_known_as("lora_dropout", "lora.dropout");
  table.add_known_as("lora_target_modules", "lora.target_modules");
}

void add_options(config::Table& table, OffloadOptions& options) {
  table.add(
      "offload.activations", &options.activations,
      "folder for files that hold activations between the forward and the backward pass; host: "
      "activations of a GPU go to host memory; empty: no offload; docs/precision-and-memory.md");
}

}  // namespace troika::nn
