#include "troika/nn/options.h"

#include "troika/base/config.h"
#include "troika/nn/attention.h"

namespace troika::nn {

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
            "probability of dropout, for all models except the residual networks; masks do not "
            "depend on the number of ranks",
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
  table.add("model.layers", &options.layers, "gpt: number of transformer blocks",
            at_least(int64_t{1}));
  table.add("model.heads", &options.heads, "gpt: number of attention heads", at_least(int64_t{1}));
  table.add("model.width", &options.width, "gpt and s2vt: width of the embeddings",
            at_least(int64_t{1}));
  table.add("model.tie_word_embeddings", &options.tie_word_embeddings,
            "gpt: the output matrix is that of the token embedding");
  table.add("model.attn_implementation", &options.attn_implementation,
            "gpt: implementation of attention; eager: matrix products; sdpa: LibTorch's fused "
            "kernel, from LibTorch 2.0 on; auto: the faster one; docs/trainer.md",
            one_of(attention_names(), {{"math", "eager"},
                                       {"products", "eager"},
                                       {"fused", "sdpa"},
                                       {"flash", "sdpa"},
                                       {"flash_attention_2", "sdpa"}}));
}

void add_options(config::Table& table, OffloadOptions& options) {
  table.add(
      "offload.activations", &options.activations,
      "folder for files that hold activations between the forward and the backward pass; host: "
      "activations of a GPU go to host memory; empty: no offload; docs/precision-and-memory.md");
}

}  // namespace troika::nn
