#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/layers.h"
#include "troika/nn/linear.h"
#include "troika/nn/models.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/rms_norm.h"
#include "troika/nn/rope.h"
#include "troika/nn/token_part.h"
#include "troika/nn/transformer.h"

namespace troika::nn {

namespace {

constexpr double kDeviation = 0.02;

std::shared_ptr<Linear> without_bias(int64_t in, int64_t out) {
  return std::make_shared<Linear>(in, out, kDeviation);
}

class LlamaAttention : public AttentionModule, public Hooked {
 public:
  explicit LlamaAttention(const ModelOptions& options)
      : size_(options.width / options.heads),
        rope_(options.rope),
        q_proj_(register_module("q_proj", without_bias(options.width, options.width))),
        k_proj_(register_module("k_proj", without_bias(options.width, options.kv_heads * size_))),
        v_proj_(register_module("v_proj", without_bias(options.width, options.kv_heads * size_))),
        o_proj_(register_module("o_proj", without_bias(options.width, options.width))) {
    use(parse_attention(options.attn_implementation));
  }

  at::Tensor forward(const at::Tensor& stream) {
    const at::Tensor input = hooked_input(stream);
    // The layers may hold a part of the heads.
    const auto heads = [&](const std::shared_ptr<Linear>& layer) {
      return layer->forward(input).unflatten(-1, {-1, size_});
    };
    const at::Tensor q = heads(q_proj_), k = heads(k_proj_), v = heads(v_proj_);
    const auto rotation = make_rotation(rope_, size_, token_positions(q.size(1)), q);
    const at::Tensor joined = attend({rotate(q, rotation), rotate(k, rotation), v}, /*dropout=*/0);
    return o_proj_->forward(joined);
  }

 private:
  int64_t size_;  // of a head
  RopeOptions rope_;
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
};

class LlamaFeedForward : public torch::nn::Module, public Hooked {
 public:
  explicit LlamaFeedForward(const ModelOptions& options)
      : gate_proj_(register_module("gate_proj", without_bias(options.width, options.ffn_width))),
        up_proj_(register_module("up_proj", without_bias(options.width, options.ffn_width))),
        down_proj_(register_module("down_proj", without_bias(options.ffn_width, options.width))) {}

  at::Tensor forward(const at::Tensor& stream) {
    const at::Tensor input = hooked_input(stream);
    return down_proj_->forward(swiglu(gate_proj_->forward(input), up_proj_->forward(input)));
  }

 private:
  std::shared_ptr<Linear> gate_proj_, up_proj_, down_proj_;
};

class LlamaLayer : public torch::nn::Module {
 public:
  explicit LlamaLayer(const ModelOptions& options)
      : input_layernorm_(register_module(
            "input_layernorm", std::make_shared<RmsNorm>(options.width, options.norm_eps))),
        self_attn_(register_module("self_attn", std::make_shared<LlamaAttention>(options))),
        post_attention_layernorm_(
            register_module("post_attention_layernorm",
                            std::make_shared<RmsNorm>(options.width, options.norm_eps))),
        mlp_(register_module("mlp", std::make_shared<LlamaFeedForward>(options))) {}

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor inner =
        add_to_stream(input, self_attn_->forward(input_layernorm_->forward(input)));
    return add_to_stream(inner, mlp_->forward(post_attention_layernorm_->forward(inner)));
  }

 private:
  std::shared_ptr<RmsNorm> input_layernorm_;
  std::shared_ptr<LlamaAttention> self_attn_;
  std::shared_ptr<RmsNorm> post_attention_layernorm_;
  std::shared_ptr<LlamaFeedForward> mlp_;
};

int64_t usual_ffn_width(int64_t width) {
  constexpr int64_t kMultiple = 256;
  return (8 * width / 3 + kMultiple - 1) / kMultiple * kMultiple;
}

// Returns the options with sizes for those that are 0.
ModelOptions checked(ModelOptions options) {
  check_transformer(options);
  refuse_dropout(options);
  check_rope(options.rope);
  require_at_least(options, "kv_heads", options.kv_heads, 0);
  require_at_least(options, "ffn_width", options.ffn_width, 0);
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  if (options.ffn_width == 0) options.ffn_width = usual_ffn_width(options.width);
  if (options.heads % options.kv_heads != 0) {
    throw Error("nn", ErrorKind::usage,
                {.what = "heads of llama do not divide into its kv_heads",
                 .got = fmt::format("heads {}, kv_heads {}", options.heads, options.kv_heads),
                 .expected = "heads a multiple of kv_heads"});
  }
  const int64_t size = options.width / options.heads;
  if (size % 2 == 0) return options;
  throw Error("nn", ErrorKind::usage,
              {.what = "rotary embeddings of llama turn pairs of a head's elements",
               .got = fmt::format("heads of {} elements: width {}, heads {}", size, options.width,
                                  options.heads),
               .expected = "an even number of elements"});
}

}  // namespace

std::shared_ptr<Model> make_llama(const ModelOptions& given) {
  const ModelOptions options = checked(given);
  auto model = std::make_shared<Model>();
  auto tokens = model->place("model.embed_tokens",
                             std::make_shared<Embedding>(options.vocab_size, options.width));
  torch::nn::init::normal_(tokens->weight, 0.0, kDeviation);
  model->add_block({"embed", {"model.embed_tokens"}, {}, [=](const at::Tensor& input) {
                      check_tokens(input, options);
                      return tokens->forward(input);
                    }});
  for (int64_t i = 0; i < options.layers; ++i) {
    model->add_block(fmt::format("model.layers.{}", i), std::make_shared<LlamaLayer>(options));
  }
  auto norm =
      model->place("model.norm", std::make_shared<RmsNorm>(options.width, options.norm_eps));
  if (!options.tie_word_embeddings) {
    auto lm_head = model->place("lm_head", without_bias(options.width, options.vocab_size));
    model->add_block({"head",
                      {"model.norm", "lm_head"},
                      {},
                      [=](const at::Tensor& input, const OutputLayer& output) {
                        return output(norm->forward(input), lm_head->weight);
                      }});
    return model;
  }
  model->add_block({"head",
                    {"model.norm"},
                    {"model.embed_tokens.weight"},
                    [=](const at::Tensor& input, const OutputLayer& output) {
                      return output(norm->forward(input), tokens->weight);
                    }});
  return model;
}

}  // namespace troika::nn
