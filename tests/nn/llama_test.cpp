// Llama and its layers, the sizes of language models, and text from them.
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "tests/support/errors.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/key_value_cache.h"
#include "troika/nn/rms_norm.h"
#include "troika/nn/sampling.h"
#include "troika/nn/token_part.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

ModelOptions small_llama() {
  return {.name = "llama",
          .vocab_size = 11,
          .context = 64,
          .layers = 2,
          .heads = 4,
          .width = 16,
          .tie_word_embeddings = false,
          .kv_heads = 2,
          .ffn_width = 24,
          .rope = {.theta = 100}};
}

// Weights that Python fills in the same way:
//   for i, (name, p) in enumerate(sorted(model.named_parameters()), 1):
//       p.copy_((torch.arange(p.numel(), dtype=torch.float64) * 0.7 + i).sin().view(p.shape) * 0.2
//               + ("norm" in name))
std::shared_ptr<Model> filled(const ModelOptions& options) {
  auto model = make_model(options);
  model->eval();
  std::map<std::string, at::Tensor> sorted;
  for (const auto& [name, tensor] : named_parameters(*model)) sorted[name] = tensor;
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (const auto& [name, tensor] : sorted) {
    const auto values = at::sin(at::arange(tensor.numel(), at::kDouble) * 0.7 + ++phase) * 0.2;
    const bool is_norm = name.find("norm") != std::string::npos;
    tensor.copy_(values.view_as(tensor) + (is_norm ? 1 : 0));
  }
  return model;
}

const std::vector<int64_t> kPrompt{3, 1, 4, 1, 5};

std::vector<int64_t> continued(Model& model, int64_t context, int64_t count,
                               const SamplingOptions& options = {.temperature = 0}) {
  std::vector<int64_t> tokens;
  continue_text(model, context, kPrompt, count, options,
                [&](int64_t token) { tokens.push_back(token); });
  return tokens;
}

TEST(LanguageModels, HaveThePublishedParameterCounts) {
  const std::vector<std::tuple<std::string, int64_t, int64_t>> all = {
      {"gpt2", 50257, 124'439'808},         {"gpt2-medium", 50257, 354'823'168},
      {"gpt2-large", 50257, 774'030'080},   {"gpt2-xl", 50257, 1'557'611'200},
      {"llama-160m", 32000, 162'417'408},   {"llama-3.2-1b", 128256, 1'235'814'400},
      {"llama-3-8b", 128256, 8'030'261'248}};
  const compat::FakeTensorGuard without_memory;
  for (const auto& [name, words, parameters] : all) {
    const auto model = make_model({.name = name, .vocab_size = words, .context = 1024});
    EXPECT_EQ(parameter_count(*model), parameters) << name;
    model->verify();
  }
}

TEST(LanguageModels, OfANameHaveTheSizesOfTheirFamily) {
  const auto xl = with_sizes({.name = "gpt2-xl", .vocab_size = 7, .context = 5, .layers = 3});
  EXPECT_EQ(xl.name, "gpt");
  EXPECT_EQ(xl.layers, 48);
  EXPECT_EQ(xl.vocab_size, 7);
  EXPECT_EQ(xl.context, 5);
  const auto llama = with_sizes({.name = "llama-3.2-1b"});
  EXPECT_EQ(llama.kv_heads, 8);
  EXPECT_EQ(llama.rope.scaling, "llama3");
  EXPECT_TRUE(llama.tie_word_embeddings);
  EXPECT_FALSE(with_sizes({.name = "llama-3-8b"}).tie_word_embeddings);
  EXPECT_EQ(model_family("gpt2-medium"), "gpt");
  EXPECT_EQ(model_family("resnet18"), "resnet18");
  EXPECT_EQ(with_sizes(small_llama()).heads, 4);
}

TEST(Llama, HasTheNamesAndShapesOfHuggingFace) {
  using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  Shapes expected = {{"model.embed_tokens.weight", {11, 16}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    expected.insert(expected.end(), {{layer + "input_layernorm.weight", {16}},
                                     {layer + "self_attn.q_proj.weight", {16, 16}},
                                     {layer + "self_attn.k_proj.weight", {8, 16}},
                                     {layer + "self_attn.v_proj.weight", {8, 16}},
                                     {layer + "self_attn.o_proj.weight", {16, 16}},
                                     {layer + "post_attention_layernorm.weight", {16}},
                                     {layer + "mlp.gate_proj.weight", {24, 16}},
                                     {layer + "mlp.up_proj.weight", {24, 16}},
                                     {layer + "mlp.down_proj.weight", {16, 24}}});
  }
  expected.insert(expected.end(), {{"model.norm.weight", {16}}, {"lm_head.weight", {11, 16}}});
  Shapes found;
  for (const auto& [name, tensor] : named_state(*make_model(small_llama()))) {
    found.emplace_back(name, tensor.sizes().vec());
  }
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
  auto tied = small_llama();
  tied.tie_word_embeddings = true;
  const auto model = make_model(tied);
  EXPECT_EQ(named_state(*model).size(), expected.size() - 1);
  EXPECT_THAT(model->blocks().back().borrows, testing::ElementsAre("model.embed_tokens.weight"));
}

TEST(Llama, HasFeedForwardLayersOfTheUsualWidth) {
  auto options = small_llama();
  options.width = 384;
  options.ffn_width = 0;
  options.kv_heads = 0;
  const auto state = named_state(*make_model(options));
  const auto shape_of = [&](const std::string& name) {
    return std::ranges::find(state, "model.layers.0." + name, [](const auto& e) { return e.first; })
        ->second.sizes()
        .vec();
  };
  EXPECT_EQ(shape_of("mlp.up_proj.weight"), (std::vector<int64_t>{1024, 384}));
  EXPECT_EQ(shape_of("self_attn.k_proj.weight"), (std::vector<int64_t>{384, 384}));
}

// Logits of LlamaForCausalLM and tokens of its generate(do_sample=False), from transformers 4.45.2
// in float32, for LlamaConfig(vocab_size=11, hidden_size=16, intermediate_size=24,
// num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
// rope_theta=100).
TEST(Llama, EqualsTransformers) {
  struct Case {
    bool is_tied;
    RopeOptions rope;
    std::vector<std::vector<float>> logits;
    std::vector<int64_t> tokens;
  };
  const std::vector<Case> cases = {
      {false,
       {.theta = 100},
       {{-0.642061F, -0.167309F, 0.574132F, 0.400412F, -0.411561F, -0.567510F, 0.181147F, 0.641057F,
         0.079129F, -0.608930F, -0.326360F},
        {0.650328F, 0.315090F, -0.522399F, -0.527189F, 0.308355F, 0.652384F, -0.043481F, -0.670038F,
         -0.228561F, 0.577240F, 0.462926F},
        {-0.238922F, -0.133775F, 0.184608F, 0.208728F, -0.099863F, -0.249273F, -0.001345F,
         0.248727F, 0.102330F, -0.207180F, -0.186447F},
        {0.979727F, 0.310177F, -0.853793F, -0.656825F, 0.587115F, 0.895200F, -0.223655F, -0.986006F,
         -0.176673F, 0.914275F, 0.547877F},
        {0.290023F, 0.207496F, -0.205777F, -0.291044F, 0.087610F, 0.326614F, 0.044998F, -0.308345F,
         -0.170189F, 0.239246F, 0.267325F}},
       {5, 5, 5, 5, 9, 8, 7, 7, 7, 7, 7, 2}},
      // rope_scaling={"rope_type": "llama3", "factor": 4, "low_freq_factor": 1,
      //               "high_freq_factor": 4, "original_max_position_embeddings": 32}
      {true,
       {.theta = 100, .scaling = "llama3", .factor = 4, .original_context = 32},
       {{-0.123871F, -0.803031F, -0.202167F, 0.720949F, 0.494879F, -0.520023F, -0.706014F,
         0.233375F, 0.800766F, 0.091744F, -0.763517F},
        {0.389040F, 0.229043F, -0.296046F, -0.349241F, 0.154251F, 0.411868F, 0.012972F, -0.406602F,
         -0.178056F, 0.334309F, 0.313789F},
        {0.692564F, -0.049948F, -0.712844F, -0.239474F, 0.615615F, 0.489419F, -0.416906F,
         -0.658687F, 0.149473F, 0.719374F, 0.142600F},
        {-0.156558F, 0.952925F, 0.543455F, -0.732277F, -0.840767F, 0.390918F, 0.999483F, 0.014882F,
         -0.993441F, -0.418229F, 0.823636F},
        {0.444200F, 0.680341F, -0.167975F, -0.748540F, -0.135940F, 0.693347F, 0.417446F, -0.523860F,
         -0.630138F, 0.268018F, 0.738956F}},
       {10, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 10}},
      // rope_scaling={"rope_type": "linear", "factor": 2.5}
      {true,
       {.theta = 100, .scaling = "linear", .factor = 2.5},
       {{-0.123871F, -0.803031F, -0.202167F, 0.720949F, 0.494879F, -0.520023F, -0.706014F,
         0.233375F, 0.800766F, 0.091744F, -0.763517F},
        {0.388809F, 0.226271F, -0.296941F, -0.346832F, 0.156124F, 0.410220F, 0.010429F, -0.405985F,
         -0.175263F, 0.334826F, 0.311206F},
        {0.512929F, 0.086383F, -0.477857F, -0.280397F, 0.364013F, 0.428190F, -0.190164F, -0.505398F,
         -0.015033F, 0.499295F, 0.217751F},
        {-0.163154F, 0.272867F, 0.273941F, -0.161645F, -0.339570F, 0.023776F, 0.349223F, 0.118012F,
         -0.301309F, -0.240346F, 0.203726F},
        {0.471076F, 0.494418F, -0.270338F, -0.604178F, 0.025035F, 0.614343F, 0.224394F, -0.523237F,
         -0.436833F, 0.345878F, 0.577263F}},
       {5, 5, 10, 1, 6, 6, 6, 6, 2, 2, 2, 2}}};
  for (const auto& [is_tied, rope, logits, tokens] : cases) {
    SCOPED_TRACE(rope.scaling);
    auto options = small_llama();
    options.tie_word_embeddings = is_tied;
    options.rope = rope;
    const auto model = filled(options);
    for (const char* attention : {"eager", "sdpa"}) {
      options.attn_implementation = attention;
      const auto other = filled(options);
      const at::NoGradGuard no_grad;
      const auto found = other->forward(at::tensor(kPrompt).unsqueeze(0))[0];
      for (int64_t i = 0; i < found.size(0); ++i) {
        const auto expected = at::tensor(logits[static_cast<size_t>(i)]);
        EXPECT_TRUE(at::allclose(found[i], expected, 1e-5, 1e-5)) << found[i] << expected;
      }
    }
    EXPECT_EQ(continued(*model, options.context, 12), tokens);
  }
}

TEST(Llama, TrainsWithTheGradientsOfItsFormulas) {
  torch::manual_seed(3);
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const double tolerance = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 0.03;
    const auto leaf = [&](std::vector<int64_t> shape) {
      return at::randn(shape).to(type).requires_grad_();
    };
    const auto exact = [](const at::Tensor& x) {
      return x.detach().to(at::kDouble).requires_grad_();
    };
    const auto expect_near = [&](const at::Tensor& found, const at::Tensor& expected) {
      EXPECT_EQ(found.scalar_type(), type);
      EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, tolerance, tolerance)) << type;
    };
    const auto x = leaf({3, 5, 8}), weight = leaf({8}), gradient = leaf({3, 5, 8}).detach();
    const auto x2 = exact(x), weight2 = exact(weight);
    const auto found = rms_norm(x, weight, 0.1);
    const auto expected = x2 * (x2.square().mean(-1, true) + 0.1).rsqrt() * weight2;
    found.backward(gradient);
    expected.backward(gradient.to(at::kDouble));
    expect_near(found, expected);
    expect_near(x.grad(), x2.grad());
    expect_near(weight.grad(), weight2.grad());

    const auto up = leaf({3, 5, 8}), gate = leaf({3, 5, 8});
    const auto up2 = exact(up), gate2 = exact(gate);
    const auto gated = swiglu(gate, up);
    const auto gated2 = gate2 * gate2.sigmoid() * up2;
    gated.backward(gradient);
    gated2.backward(gradient.to(at::kDouble));
    expect_near(gated, gated2);
    expect_near(up.grad(), up2.grad());
    expect_near(gate.grad(), gate2.grad());
  }
}

TEST(Llama, RefusesImpossibleOptions) {
  const auto make = [](auto change) {
    ModelOptions options = small_llama();
    change(options);
    make_model(options);
  };
  EXPECT_ERROR(make([](ModelOptions& o) { o.kv_heads = 3; }), ErrorKind::usage,
               "[nn] heads of llama do not divide into its kv_heads; got heads 4, kv_heads 3, "
               "expected heads a multiple of kv_heads");
  EXPECT_ERROR(make([](ModelOptions& o) { o.width = 12; }), ErrorKind::usage,
               "[nn] rotary embeddings of llama turn pairs of a head's elements; got heads of 3 "
               "elements: width 12, heads 4, expected an even number of elements");
  EXPECT_ERROR(make([](ModelOptions& o) { o.dropout = 0.1; }), ErrorKind::usage,
               "[nn] llama has no dropout; got dropout 0.1, expected 0");
  EXPECT_ERROR(make([](ModelOptions& o) { o.rope.scaling = "yarn"; }), ErrorKind::usage,
               "[nn] unknown scaling of rotary embeddings; got yarn, expected one of default, "
               "linear, llama3 (did you mean linear?)");
  EXPECT_ERROR(make([](ModelOptions& o) {
                 o.rope.scaling = "llama3";
                 o.rope.high_freq_factor = 1;
               }),
               ErrorKind::usage,
               "[nn] high_freq_factor of rotary embeddings is too small; got 1, expected more "
               "than low_freq_factor, 1");
  EXPECT_ERROR(make_model(small_llama())->forward(at::zeros({1, 65}, at::kLong)), ErrorKind::usage,
               "[nn] llama cannot read this batch; got Long of shape [1, 65], expected Long of "
               "shape [batch, length <= 64]");
}

// The tokens that a model reads one by one, with keys and values of those before, have the logits
// that they have together.
TEST(KeyValueCache, GivesTheLogitsOfTheWholeText) {
  auto gpt = small_llama();
  gpt.name = "gpt";
  for (const auto& options : {small_llama(), gpt}) {
    const auto model = filled(options);
    const at::NoGradGuard no_grad;
    const auto tokens = at::arange(2 * 9, at::kLong).remainder(11).view({2, 9});
    const auto whole = model->forward(tokens);
    KeyValueCache cache;
    const KeyValueCacheGuard guard(cache);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 4}, {4, 5}, {5, 9}}) {
      const auto found = model->forward(tokens.slice(1, begin, end));
      cache.advance(end - begin);
      EXPECT_TRUE(at::allclose(found, whole.slice(1, begin, end), 1e-5, 1e-6)) << options.name;
    }
    EXPECT_ERROR(model->forward(at::zeros({2, 56}, at::kLong)), ErrorKind::usage,
                 "[nn] " + options.name +
                     " cannot read this batch; got Long of shape [2, 56], expected Long of shape "
                     "[batch, length <= 55]");
  }
  const auto model = filled(small_llama());
  EXPECT_EQ(token_positions(3), (std::vector<Stretch>{{0, 3}}));
}

TEST(ContinueText, ReadsHalfOfAFullContextAgain) {
  auto options = small_llama();
  options.context = 6;
  const auto model = filled(options);
  std::vector<int64_t> text = kPrompt;
  const at::NoGradGuard no_grad;
  int64_t seen = 5;
  for (int i = 0; i < 9; ++i, ++seen) {
    if (seen > 6) seen = 3;
    const std::vector<int64_t> read(text.end() - seen, text.end());
    text.push_back(model->forward(at::tensor(read).unsqueeze(0))[0][-1].argmax().item<int64_t>());
  }
  EXPECT_EQ(continued(*model, 6, 9), std::vector<int64_t>(text.begin() + 5, text.end()));
}

TEST(Sampling, KeepsTheLikelyTokens) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto logits = at::tensor({0.1, 0.4, 0.2, 0.2, 0.1}, at::kDouble).log();
  const auto kept = [&](const SamplingOptions& options) {
    return filtered_logits(logits, options).isfinite();
  };
  const auto flags = [](std::vector<int> of) { return at::tensor(of).to(at::kBool); };
  EXPECT_TRUE(kept({}).all().item<bool>());
  EXPECT_TRUE(kept({.top_k = 1}).equal(flags({0, 1, 0, 0, 0})));
  EXPECT_TRUE(kept({.top_k = 2}).equal(flags({0, 1, 1, 1, 0}))) << "ties stay";
  EXPECT_TRUE(kept({.top_k = 9}).all().item<bool>());
  EXPECT_TRUE(kept({.top_p = 0.3}).equal(flags({0, 1, 0, 0, 0})));
  EXPECT_TRUE(kept({.top_p = 0.75}).equal(flags({0, 1, 1, 1, 0})));
  // 1 - 1e-9 is 1 in float32.
  EXPECT_TRUE(filtered_logits(logits.to(at::kFloat), {.top_p = 1e-9})
                  .isfinite()
                  .equal(flags({0, 1, 0, 0, 0})));
  EXPECT_TRUE(kept({.top_k = 3, .top_p = 0.45}).equal(flags({0, 1, 0, 0, 0})));
  EXPECT_EQ(kept({.top_k = 3, .top_p = 0.6}).sum().item<int64_t>(), 2);
  EXPECT_TRUE(at::allclose(filtered_logits(logits, {.temperature = 0.5}), logits * 2));
  EXPECT_EQ(filtered_logits(logits, {.top_k = 1})[0].item<double>(), -inf);
  EXPECT_EQ(choose_token(at::tensor({1.0F, 2.0F, 2.0F}), {.temperature = 0}), 1);
}

TEST(Sampling, DrawsByProbability) {
  torch::manual_seed(11);
  const auto logits = at::tensor({0.5, 0.25, 0.25}, at::kDouble).log();
  std::vector<int> counts(3);
  for (int i = 0; i < 2000; ++i) {
    ++counts[static_cast<size_t>(choose_token(logits, {.temperature = 0.5}))];
  }
  // Squares of the probabilities: 4 : 1 : 1.
  EXPECT_NEAR(counts[0], 2000 * 4 / 6, 100);
  EXPECT_NEAR(counts[1], 2000 / 6, 80);
}

TEST(Sampling, RefusesOptionsOutOfRange) {
  const auto logits = at::zeros({3});
  EXPECT_ERROR(filtered_logits(logits, {.temperature = -1}), ErrorKind::usage,
               "[nn] temperature of samples is out of range; got -1, expected at least 0");
  EXPECT_ERROR(filtered_logits(logits, {.top_k = -1}), ErrorKind::usage,
               "[nn] top_k of samples is out of range; got -1, expected at least 0");
  EXPECT_ERROR(filtered_logits(logits, {.top_p = 0}), ErrorKind::usage,
               "[nn] top_p of samples is out of range; got 0, expected 0 < top_p <= 1");
}

}  // namespace
}  // namespace troika::nn
