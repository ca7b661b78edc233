// Low-rank adapters.
#include "troika/nn/lora.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "tests/support/errors.h"
#include "troika/compat/deferred_init.h"
#include "troika/compat/torch.h"
#include "troika/nn/linear.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

ModelOptions adapted(const std::string& name, const LoraOptions& lora) {
  return {.name = name,
          .num_classes = 5,
          .image_size = 32,
          .hidden_width = 6,
          .feature_width = 5,
          .frames = 6,
          .vocab_size = 13,
          .context = 6,
          .layers = 2,
          .heads = 4,
          .width = 16,
          .kv_heads = 2,
          .ffn_width = 12,
          .lora = lora};
}

std::shared_ptr<Model> make(const ModelOptions& options) {
  torch::manual_seed(3);
  auto model = make_model(options);
  model->to(at::kDouble);
  return model;
}

// Adapters as they may be after training.
void fill_adapters(Model& model) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : named_parameters(model)) {
    if (!is_adapter_parameter(name)) continue;
    parameter.copy_(at::sin(at::arange(parameter.numel(), at::kDouble)).view_as(parameter));
  }
}

std::map<std::string, at::Tensor> copies(const Model& model) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : named_state(model)) result[name] = tensor.detach().clone();
  return result;
}

at::Tensor outputs_of(Model& model, const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  return only(model.forward(inputs));
}

Tensors inputs_for(const ModelOptions& options) {
  torch::manual_seed(4);
  auto inputs = example_inputs(options, 2);
  for (auto& input : inputs) {
    if (input.is_floating_point()) input = input.to(at::kDouble);
  }
  return inputs;
}

// Without training, the model computes the same bits; with it, merged equals apart, and neither
// touches the base.
TEST(Lora, MergedEqualsApartInModelsOfAllKinds) {
  for (const std::string name : {"mlp", "gpt", "llama", "s2vt", "vgg11_cifar"}) {
    SCOPED_TRACE(name);
    auto options = adapted(name, {});
    const auto inputs = inputs_for(options);
    const auto plain = make(options);
    plain->eval();
    options.lora = {.rank = 3, .alpha = 6};
    const auto model = make(options);
    model->verify();
    model->eval();
    const auto base = copies(*plain);
    auto before = copies(*model);
    for (const auto& [key, tensor] : base) EXPECT_TRUE(before.at(key).equal(tensor)) << key;
    const auto first = outputs_of(*model, inputs);
    EXPECT_TRUE(first.equal(outputs_of(*plain, inputs)));

    fill_adapters(*model);
    const auto apart = outputs_of(*model, inputs);
    EXPECT_FALSE(apart.allclose(first, 1e-3, 1e-3));
    for (const auto& [key, tensor] : copies(*model)) {
      EXPECT_TRUE(!base.contains(key) || tensor.equal(base.at(key))) << key;
    }
    merge_adapters(*model, options.lora.scaling());
    EXPECT_THAT(copies(*model), SizeIs(base.size()));
    EXPECT_TRUE(outputs_of(*model, inputs).allclose(apart, 1e-10, 1e-10));
    EXPECT_EQ(model->options()->lora, LoraOptions{});
  }
}

TEST(Lora, TrainsOnlyAdapters) {
  auto options = adapted("gpt", {.rank = 2, .dropout = 0.5});
  const auto model = make(options);
  for (const auto& [name, parameter] : named_parameters(*model)) {
    EXPECT_EQ(parameter.requires_grad(), is_adapter_parameter(name)) << name;
  }
  only(model->forward(inputs_for(options))).square().sum().backward();
  for (const auto& [name, parameter] : named_parameters(*model)) {
    EXPECT_EQ(parameter.grad().defined(), is_adapter_parameter(name)) << name;
    if (name.ends_with("lora_B.weight")) {
      EXPECT_GT(parameter.grad().abs().sum().item<double>(), 0) << name;
    }
  }
}

// Hu et al.'s code and PEFT: Kaiming uniform with a = sqrt(5), which has bounds +-1/sqrt(in).
TEST(Lora, StartsAsTheOriginal) {
  const auto model = make(adapted("llama", {.rank = 4, .target_modules = {"down_proj"}}));
  for (const auto& [name, parameter] : trained_parameters(*model)) {
    if (name.ends_with("lora_B.weight")) {
      EXPECT_EQ(parameter.sizes(), at::IntArrayRef({16, 4}));
      EXPECT_EQ(parameter.count_nonzero().item<int64_t>(), 0);
      continue;
    }
    EXPECT_EQ(parameter.sizes(), at::IntArrayRef({4, 12}));
    const double most = parameter.abs().max().item<double>(), bound = 1 / std::sqrt(12.0);
    EXPECT_LE(most, bound);
    EXPECT_GT(most, 0.8 * bound);
  }
  EXPECT_DOUBLE_EQ((LoraOptions{.rank = 4, .alpha = 6}).scaling(), 1.5);
  EXPECT_DOUBLE_EQ((LoraOptions{.rank = 4, .alpha = 6, .use_rslora = true}).scaling(), 3);
}

TEST(Lora, TargetsAreEndsOfNames) {
  const auto layers = [](const std::string& name, const std::vector<std::string>& targets) {
    return adapted_layers(*make(adapted(name, {.rank = 1, .target_modules = targets})));
  };
  EXPECT_THAT(layers("llama", {"q_proj", "mlp.up_proj"}),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj",
                          "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_THAT(layers("llama", {"layers.1.*.v_proj"}),
              ElementsAre("model.layers.1.self_attn.v_proj"));
  EXPECT_THAT(layers("gpt", {"mlp.c_proj"}),
              ElementsAre("transformer.h.0.mlp.c_proj", "transformer.h.1.mlp.c_proj"));
  EXPECT_THAT(layers("llama", {"all-linear"}), SizeIs(14));
  EXPECT_THAT(layers("mlp", {"head"}), ElementsAre("head"));
}

TEST(Lora, NamesTargetsShortly) {
  const auto targets = [](const std::string& name, const std::vector<std::string>& of) {
    return adapter_targets(*make(adapted(name, {.rank = 1, .target_modules = of})));
  };
  EXPECT_THAT(targets("llama", {"q_proj", "v_proj"}), ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(targets("gpt", {"mlp.c_proj"}),
              ElementsAre("transformer.h.0.mlp.c_proj", "transformer.h.1.mlp.c_proj"));
  EXPECT_THAT(targets("mlp", {"head"}), ElementsAre("head"));
  EXPECT_THAT(adapter_targets(*make(adapted("mlp", {}))), IsEmpty());
}

TEST(Lora, CanBeMadeWithoutValues) {
  const auto options = adapted("llama", {.rank = 2});
  torch::manual_seed(3);
  const auto expected = copies(*make_model(options));
  torch::manual_seed(3);
  compat::DeferredInit values;
  std::shared_ptr<Model> model;
  values.record([&] { model = make_model(options); });
  EXPECT_TRUE(values.is_complete());
  values.materialize([](compat::DeferredInit::Key, const at::Tensor&) { return false; });
  for (const auto& [name, tensor] : copies(*model)) {
    EXPECT_TRUE(tensor.equal(expected.at(name))) << name;
  }
  for (const auto& [name, parameter] : named_parameters(*model)) {
    EXPECT_EQ(parameter.requires_grad(), is_adapter_parameter(name)) << name;
  }
}

TEST(Lora, RefusesWhatCannotBeAdapted) {
  const auto make_with = [](const std::string& name, const LoraOptions& lora) {
    make(adapted(name, lora));
  };
  EXPECT_ERROR(make_with("llama", {.rank = -1}), ErrorKind::usage,
               "[nn] lora.rank is too small; got -1, expected a rank of at least 1");
  EXPECT_ERROR(make_with("llama", {.alpha = 8}), ErrorKind::usage,
               "[nn] there are options of adapters, but lora.rank is 0; got 0, expected a rank of "
               "at least 1");
  EXPECT_ERROR(make_with("llama", {.rank = 2, .dropout = 1}), ErrorKind::usage,
               "[nn] options of adapters are out of range; got lora.alpha 16, lora.dropout 1, "
               "expected alpha > 0, and 0 <= dropout < 1");
  EXPECT_ERROR(make_with("llama", {.rank = 2, .target_modules = {"q_proj", "c_attn"}}),
               ErrorKind::usage,
               "[nn] c_attn of lora.target_modules names no layer; got a model whose linear layers "
               "end in q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, expected one "
               "of these ends, a full name, or all-linear");
  EXPECT_ERROR(
      make_with("llama", {.rank = 2, .target_modules = {}}), ErrorKind::usage,
      "[nn] lora.target_modules names no layers, or all and others; got [], expected names "
      "of linear layers, or all-linear alone");
  EXPECT_ERROR(
      make_with("llama", {.rank = 2, .target_modules = {"embed_tokens"}}), ErrorKind::usage,
      "[nn] embed_tokens of lora.target_modules cannot have adapters; got "
      "model.embed_tokens, a troika::nn::Embedding, expected a linear layer: nn::Linear or "
      "nn::Conv1D");
  auto untied = adapted("llama", {.rank = 2, .target_modules = {"lm_head"}});
  untied.tie_word_embeddings = false;
  EXPECT_ERROR(
      make(untied), ErrorKind::usage,
      "[nn] lm_head of lora.target_modules cannot have adapters; got lm_head, whose weight "
      "the output layer reads, expected a layer whose forward pass runs");
  EXPECT_ERROR(make_with("resnet20", {.rank = 2}), ErrorKind::usage,
               "[nn] a model with adapters has no batch norms; got bn1, whose statistics training "
               "changes, expected a model whose layers training leaves as they are");
  const auto model = make(adapted("mlp", {.rank = 2}));
  EXPECT_ERROR(add_adapters(*model, {.rank = 2}), ErrorKind::usage,
               "[nn] the model already has adapters; got layers.0.lora_A, expected a model without "
               "adapters (nn::merge_adapters() merges them)");
  Model foreign;
  foreign.add_block("fc", torch::nn::Linear(3, 4));
  EXPECT_ERROR(add_adapters(foreign, {.rank = 2}), ErrorKind::usage,
               "[nn] all-linear of lora.target_modules cannot have adapters; got fc, a "
               "torch::nn::Linear, expected an nn::Linear or nn::Conv1D (they are the same layers, "
               "with hooks)");
}

}  // namespace
}  // namespace troika::nn
