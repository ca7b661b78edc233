#include "troika/parallel/tensor/split_table.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace troika::parallel {

namespace {

// A layer of a chain, and the modules between it and the next layer.
struct ChainLayer {
  std::string name;
  std::string norm = {}, dropout = {};  // empty: it has none
};

// Pairs of neighbouring layers are cut by outputs and by inputs. A last layer without a partner is
// whole.
SplitTable chain_table(const std::vector<ChainLayer>& layers) {
  SplitTable table;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool is_row = i % 2 == 1, is_column = !is_row && i + 1 < layers.size();
    const auto add = [&](const std::string& name, Split of_column, Split otherwise) {
      if (!name.empty()) table.push_back({name, is_column ? of_column : otherwise});
    };
    add(layers[i].name, Split::column, is_row ? Split::row : Split::whole);
    add(layers[i].norm, Split::norm_of_column, Split::whole);
    add(layers[i].dropout, Split::dropout_of_column, Split::whole);
  }
  return table;
}

SplitTable mlp_table(const nn::ModelOptions& options) {
  std::vector<ChainLayer> layers;
  for (int64_t i = 0; i < options.hidden_layers; ++i) {
    layers.push_back({fmt::format("layers.{}", i), "", fmt::format("dropout.{}", i)});
  }
  layers.push_back({"head"});
  return chain_table(layers);
}

// The rules are inside a residual block, whose input and output are whole. The first convolution
// of a bottleneck is whole, too: a block then sums one activation in each pass, as with two
// convolutions.
SplitTable resnet_table(bool has_bottlenecks) {
  const std::string block = "*.*.";
  SplitTable table{{"conv1", Split::whole}, {"bn1", Split::whole}};
  if (has_bottlenecks) {
    table.push_back({block + "conv1", Split::whole});
    table.push_back({block + "bn1", Split::whole});
  }
  const int column = has_bottlenecks ? 2 : 1;
  table.push_back({fmt::format("{}conv{}", block, column), Split::column});
  table.push_back({fmt::format("{}bn{}", block, column), Split::norm_of_column});
  table.push_back({fmt::format("{}conv{}", block, column + 1), Split::row});
  table.push_back({fmt::format("{}bn{}", block, column + 1), Split::whole});
  for (const char* const part : {"0", "1"}) {
    table.push_back({fmt::format("{}downsample.{}", block, part), Split::whole});
  }
  table.push_back({"fc", Split::whole});
  return table;
}

// vgg11 or vgg16, whose names may end with _bn and _cifar.
SplitTable vgg_table(std::string_view name) {
  const bool is_small = name.ends_with("_cifar"), has_norms = name.find("_bn") != name.npos;
  const auto of_each_size =
      name.starts_with("vgg11") ? std::vector<int>{1, 1, 2, 2, 2} : std::vector<int>{2, 2, 3, 3, 3};
  std::vector<ChainLayer> layers;
  int number = 0;
  for (const int convolutions : of_each_size) {
    for (int i = 0; i < convolutions; ++i) {
      const auto norm = has_norms ? fmt::format("features.{}", number + 1) : "";
      layers.push_back({fmt::format("features.{}", number), norm});
      number += has_norms ? 3 : 2;
    }
    ++number;  // a pooling
  }
  if (is_small) {
    layers.back().dropout = "dropout";
    layers.push_back({"classifier"});
  } else {
    layers.push_back({"classifier.0", "", "classifier.2"});
    layers.push_back({"classifier.3", "", "classifier.5"});
    layers.push_back({"classifier.6"});
  }
  return chain_table(layers);
}

SplitTable alexnet_table() {
  return chain_table({{"features.0"},
                      {"features.3"},
                      {"features.6"},
                      {"features.8"},
                      {"features.10", "", "classifier.0"},
                      {"classifier.1", "", "classifier.3"},
                      {"classifier.4"},
                      {"classifier.6"}});
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
  if (options.name == "alexnet") return alexnet_table();
  if (options.name.starts_with("vgg")) return vgg_table(options.name);
  if (options.name.starts_with("resnet")) {
    return resnet_table(options.name.starts_with("resnet50") ||
                        options.name.starts_with("resnet101"));
  }
  if (options.name == "gpt") return gpt_table(options);
  if (options.name == "llama") return llama_table(options);
  return {};
}

}  // namespace troika::parallel
