#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

ModelOptions small_gpt() {
  return {.name = "gpt", .vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 12};
}

TEST(Gpt, CountsAsGpt2Small) {
  const auto model = make_model({.name = "gpt",
                                 .vocab_size = 50257,
                                 .context = 1024,
                                 .layers = 12,
                                 .heads = 12,
                                 .width = 768});
  EXPECT_EQ(parameter_count(*model), 124'439'808);
}

TEST(Gpt, HasTheNamesAndShapesOfHuggingFace) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> expected = {
      {"transformer.wte.weight", {11, 12}}, {"transformer.wpe.weight", {8, 12}}};
  for (const std::string layer : {"transformer.h.0.", "transformer.h.1."}) {
    expected.insert(expected.end(), {{layer + "ln_1.weight", {12}},
                                     {layer + "ln_1.bias", {12}},
                                     {layer + "attn.c_attn.weight", {12, 36}},
                                     {layer + "attn.c_attn.bias", {36}},
                                     {layer + "attn.c_proj.weight", {12, 12}},
                                     {layer + "attn.c_proj.bias", {12}},
                                     {layer + "ln_2.weight", {12}},
                                     {layer + "ln_2.bias", {12}},
                                     {layer + "mlp.c_fc.weight", {12, 48}},
                                     {layer + "mlp.c_fc.bias", {48}},
                                     {layer + "mlp.c_proj.weight", {48, 12}},
                                     {layer + "mlp.c_proj.bias", {12}}});
  }
  expected.insert(expected.end(),
                  {{"transformer.ln_f.weight", {12}}, {"transformer.ln_f.bias", {12}}});
  std::vector<std::pair<std::string, std::vector<int64_t>>> found;
  for (const state::Entry& entry : named_state(*make_model(small_gpt()))) {
    found.emplace_back(entry.first, entry.second.sizes().vec());
  }
  EXPECT_EQ(found, expected);
}

TEST(Gpt, DeclaresItsTiedOutput) {
  const auto model = make_model(small_gpt());
  EXPECT_THAT(model->blocks().back().borrows, testing::ElementsAre("transformer.wte.weight"));
  // The output matrix is the embedding: a change of the embedding changes the logits.
  torch::NoGradGuard no_grad;
  const at::Tensor features = torch::randn({1, 3, 12});
  model->named_parameters()["transformer.wte.weight"].zero_();
  EXPECT_TRUE(model->blocks().back().forward(features).eq(0).all().item<bool>());
}

TEST(Gpt, SeesOnlyThePast) {
  torch::manual_seed(1);
  const auto model = make_model(small_gpt());
  torch::NoGradGuard no_grad;
  const at::Tensor tokens = torch::randint(11, {2, 8}, torch::kInt64);
  const at::Tensor before = model->forward(tokens);
  for (int64_t t = 0; t < 8; ++t) {
    at::Tensor changed = tokens.clone();
    changed.select(1, t).add_(1).remainder_(11);
    const at::Tensor after = model->forward(changed);
    EXPECT_TRUE(torch::equal(after.slice(1, 0, t), before.slice(1, 0, t))) << t;
    for (int64_t later = t; later < 8; ++later) {
      EXPECT_FALSE(torch::equal(after.select(1, later), before.select(1, later))) << t << later;
    }
  }
}

TEST(Gpt, ReadsShortSequences) {
  torch::manual_seed(2);
  const auto model = make_model(small_gpt());
  torch::NoGradGuard no_grad;
  const at::Tensor tokens = torch::randint(11, {2, 8}, torch::kInt64);
  EXPECT_TRUE(torch::allclose(model->forward(tokens.slice(1, 0, 5)),
                              model->forward(tokens).slice(1, 0, 5)));
}

TEST(Gpt, StartsAsGpt2) {
  torch::manual_seed(3);
  const auto model = make_model(
      {.name = "gpt", .vocab_size = 256, .context = 64, .layers = 8, .heads = 4, .width = 128});
  for (const state::Entry& entry : named_state(*model)) {
    const std::string& name = entry.first;
    if (name.ends_with("bias")) {
      EXPECT_TRUE(entry.second.eq(0).all().item<bool>()) << name;
    } else if (name.find("ln_") != std::string::npos) {
      EXPECT_TRUE(entry.second.eq(1).all().item<bool>()) << name;
    } else {
      const double deviation = name.ends_with("c_proj.weight") ? 0.02 / 4 : 0.02;
      EXPECT_NEAR(entry.second.std().item<double>() / deviation, 1, 0.05) << name;
    }
  }
}

// Hugging Face's block, a head at a time.
TEST(Gpt, BlockEqualsItsFormula) {
  torch::manual_seed(5);
  torch::NoGradGuard no_grad;
  const auto model = make_model(small_gpt());
  std::map<std::string, at::Tensor> w;
  for (const state::Entry& entry : named_state(*model)) {
    w[entry.first] = entry.second.uniform_(-0.5, 0.5);
  }
  const std::string h = "transformer.h.0.";
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return x.matmul(w.at(h + name + ".weight")) + w.at(h + name + ".bias");
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor centred = x - x.mean(-1, true);
    const at::Tensor variance = centred.square().mean(-1, true);
    return centred / (variance + 1e-5).sqrt() * w.at(h + name + ".weight") +
           w.at(h + name + ".bias");
  };
  const at::Tensor input = torch::randn({3, 8, 12});
  const auto qkv = linear(norm(input, "ln_1"), "attn.c_attn").split(12, -1);
  std::vector<at::Tensor> heads;
  for (int64_t head = 0; head < 2; ++head) {
    const auto part = [&](const at::Tensor& x) { return x.slice(-1, 6 * head, 6 * head + 6); };
    const at::Tensor scores = part(qkv[0]).matmul(part(qkv[1]).transpose(1, 2)) / std::sqrt(6.0);
    const at::Tensor future = torch::ones({8, 8}).triu(1).to(torch::kBool);
    heads.push_back(scores.masked_fill(future, -1e9).softmax(-1).matmul(part(qkv[2])));
  }
  at::Tensor expected = input + linear(at::cat(heads, -1), "attn.c_proj");
  const at::Tensor x = linear(norm(expected, "ln_2"), "mlp.c_fc");
  const at::Tensor gelu_new =
      0.5 * x * (1 + (std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))).tanh());
  expected = expected + linear(gelu_new, "mlp.c_proj");
  EXPECT_TRUE(torch::allclose(model->blocks()[1].forward(input), expected, 1e-4, 1e-5));
}

TEST(Gpt, DropsOnlyWhileTraining) {
  ModelOptions options = small_gpt();
  options.dropout = 0.5;
  const auto model = make_model(options);
  torch::NoGradGuard no_grad;
  const at::Tensor tokens = torch::randint(11, {2, 8}, torch::kInt64);
  EXPECT_FALSE(torch::equal(model->forward(tokens), model->forward(tokens)));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(tokens), model->forward(tokens)));
}

TEST(Gpt, RefusesImpossibleOptions) {
  const auto make = [](auto change) {
    ModelOptions options = small_gpt();
    change(options);
    make_model(options);
  };
  EXPECT_ERROR(make([](ModelOptions& o) { o.heads = 5; }), ErrorKind::usage,
               "[nn] width of gpt does not divide into its heads; got width 12, heads 5, expected "
               "a multiple of heads");
  EXPECT_ERROR(make([](ModelOptions& o) { o.heads = 0; }), ErrorKind::usage,
               "[nn] heads of gpt is too small; got 0, expected at least 1");
  EXPECT_ERROR(make([](ModelOptions& o) { o.layers = 0; }), ErrorKind::usage,
               "[nn] layers of gpt is too small; got 0, expected at least 1");
  EXPECT_ERROR(make([](ModelOptions& o) { o.width = -12; }), ErrorKind::usage,
               "[nn] width of gpt is too small; got -12, expected at least 1");
  EXPECT_ERROR(make([](ModelOptions& o) { o.context = 0; }), ErrorKind::usage,
               "[nn] context of gpt is too small; got 0, expected at least 1");
  EXPECT_ERROR(make([](ModelOptions& o) { o.vocab_size = 0; }), ErrorKind::usage,
               "[nn] vocab_size of gpt is too small; got 0, expected at least 1");
}

TEST(Gpt, RefusesWhatIsNoBatchOfTokens) {
  const auto model = make_model(small_gpt());
  EXPECT_ERROR(model->forward(torch::zeros({2, 9}, torch::kInt64)), ErrorKind::usage,
               "[nn] gpt cannot read this batch; got Long of shape [2, 9], expected Long of shape "
               "[batch, length <= 8]");
  EXPECT_ERROR(model->forward(torch::zeros({2, 8})), ErrorKind::usage,
               "[nn] gpt cannot read this batch; got Float of shape [2, 8], expected Long of shape "
               "[batch, length <= 8]");
}

}  // namespace
}  // namespace troika::nn
