#include <fmt/format.h>

#include <cmath>

#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/dense.h"
#include "troika/nn/dropout.h"
#include "troika/nn/gelu.h"
#include "troika/nn/layer_norm.h"
#include "troika/nn/linear.h"
#include "troika/nn/models.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/token_part.h"
#include "troika/nn/transformer.h"

namespace troika::nn {

namespace {

constexpr double kInitDeviation = 0.02;

class SelfAttention : public AttentionModule {
 public:
  SelfAttention(const ModelOptions& options, double residual_deviation)
      : c_attn_(register_module(
            "c_attn", std::make_shared<Conv1D>(options.width, 3 * options.width, kInitDeviation))),
        c_proj_(register_module(
            "c_proj", std::make_shared<Conv1D>(options.width, options.width, residual_deviation))),
        resid_dropout_(
            register_module("resid_dropout", std::make_shared<Dropout>(options.dropout))),
        size_(options.width / options.heads),
        dropout_(options.dropout) {
    use(parse_attention(options.attn_implementation));
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor qkv = c_attn_->forward(input);
    // The layer may hold a part of the heads.
    const int64_t heads = qkv.size(-1) / (3 * size_);
    const at::Tensor joined = attend(qkv, heads, is_training() ? dropout_ : 0.0);
    return resid_dropout_->forward(c_proj_->forward(joined));
  }

 private:
  std::shared_ptr<Conv1D> c_attn_;
  std::shared_ptr<Conv1D> c_proj_;
  std::shared_ptr<Dropout> resid_dropout_;
  int64_t size_;  // of a head
  double dropout_;
};

class FeedForward : public torch::nn::Module {
 public:
  FeedForward(const ModelOptions& options, double residual_deviation)
      : c_fc_(register_module(
            "c_fc", std::make_shared<Conv1D>(options.width, 4 * options.width, kInitDeviation))),
        c_proj_(register_module("c_proj", std::make_shared<Conv1D>(4 * options.width, options.width,
                                                                   residual_deviation))),
        dropout_(register_module("dropout", std::make_shared<Dropout>(options.dropout))) {}

  at::Tensor forward(const at::Tensor& input) {
    return dropout_->forward(c_proj_->forward(gelu_tanh(c_fc_->forward(input))));
  }

 private:
  std::shared_ptr<Conv1D> c_fc_;
  std::shared_ptr<Conv1D> c_proj_;
  std::shared_ptr<Dropout> dropout_;
};

torch::nn::LayerNorm make_layer_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

class TransformerBlock : public torch::nn::Module {
 public:
  TransformerBlock(const ModelOptions& options, double residual_deviation)
      : ln_1_(register_module("ln_1", make_layer_norm(options.width))),
        attn_(
            register_module("attn", std::make_shared<SelfAttention>(options, residual_deviation))),
        ln_2_(register_module("ln_2", make_layer_norm(options.width))),
        mlp_(register_module("mlp", std::make_shared<FeedForward>(options, residual_deviation))) {}

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor inner = add_to_stream(input, attn_->forward(layer_norm(*ln_1_, input)));
    return add_to_stream(inner, mlp_->forward(layer_norm(*ln_2_, inner)));
  }

 private:
  torch::nn::LayerNorm ln_1_;
  std::shared_ptr<SelfAttention> attn_;
  torch::nn::LayerNorm ln_2_;
  std::shared_ptr<FeedForward> mlp_;
};

}  // namespace

std::shared_ptr<Model> make_gpt(const ModelOptions& options) {
  check_transformer(options);
  auto model = std::make_shared<Model>();
  auto wte = model->place("transformer.wte",
                          std::make_shared<Embedding>(options.vocab_size, options.width));
  auto wpe = model->place("transformer.wpe", torch::nn::Embedding(options.context, options.width));
  torch::nn::init::normal_(wte->weight, 0.0, kInitDeviation);
  torch::nn::init::normal_(wpe->weight, 0.0, kInitDeviation);
  auto drop = model->place("transformer.drop", std::make_shared<Dropout>(options.dropout));
  model->add_block(
      {"embed", {"transformer.wte", "transformer.wpe"}, {}, [=](const at::Tensor& tokens) {
         check_tokens(tokens, options);
         const at::Tensor positions = rows_at(wpe->weight, token_positions(tokens.size(1)));
         return drop->forward(wte->forward(tokens) + positions);
       }});

  // Each layer adds to the residual stream twice; this scale keeps the variance of the sum (GPT-2,
  // section 2.3).
  const double residual_deviation =
      kInitDeviation / std::sqrt(2.0 * static_cast<double>(options.layers));
  for (int64_t i = 0; i < options.layers; ++i) {
    model->add_block(fmt::format("transformer.h.{}", i),
                     std::make_shared<TransformerBlock>(options, residual_deviation));
  }

  auto ln_f = model->place("transformer.ln_f", make_layer_norm(options.width));
  if (!options.tie_word_embeddings) {
    auto lm_head = model->place(
        "lm_head",
        torch::nn::Linear(torch::nn::LinearOptions(options.width, options.vocab_size).bias(false)));
    torch::nn::init::normal_(lm_head->weight, 0.0, kInitDeviation);
    model->add_block({"head",
                      {"transformer.ln_f", "lm_head"},
                      {},
                      [=](const at::Tensor& input, const OutputLayer& output) {
                        return output(layer_norm(*ln_f, input), lm_head->weight);
                      }});
    return model;
  }
  // The output layer uses wte's weight and does not register it again: an optimizer over
  // parameters() would update a tensor that is registered twice two times per step.
  model->add_block({"head",
                    {"transformer.ln_f"},
                    {"transformer.wte.weight"},
                    [=](const at::Tensor& input, const OutputLayer& output) {
                      return output(layer_norm(*ln_f, input), wte->weight);
                    }});
  return model;
}

}  // namespace troika::nn
