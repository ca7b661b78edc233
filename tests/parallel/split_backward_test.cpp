#include "troika/compat/split_backward.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "troika/nn/dense.h"
#include "troika/nn/zoo.h"

namespace troika::compat {
namespace {

// Expects that the two parts give the gradients of one backward pass, and that the first part gives
// no gradient of a parameter.
void expect_same_gradients(torch::nn::Module& module, const at::Tensor& input,
                           const std::function<at::Tensor(const at::Tensor&)>& forward) {
  const auto whole_input = input.detach().requires_grad_();
  module.zero_grad(/*set_to_none=*/true);
  forward(whole_input).backward();
  std::vector<at::Tensor> expected;
  for (const auto& parameter : module.parameters()) expected.push_back(parameter.grad().clone());

  module.zero_grad(/*set_to_none=*/true);
  for (int repeat = 1; repeat <= 2; ++repeat) {  // gradients add up
    const auto leaf = input.detach().requires_grad_();
    SplitBackward half({forward(leaf)}, {}, {leaf});
    const auto of_inputs = half.take_inputs();
    ASSERT_TRUE(of_inputs[0].defined());
    EXPECT_TRUE(of_inputs[0].equal(whole_input.grad()));
    EXPECT_FALSE(leaf.grad().defined());
    for (const auto& parameter : module.parameters()) {
      EXPECT_EQ(parameter.grad().defined(), repeat > 1);
    }
    half.run_weights();
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto& gradient = module.parameters()[i].grad();
      ASSERT_TRUE(gradient.defined()) << "parameter " << i;
      EXPECT_TRUE(gradient.allclose(repeat * expected[i], 1e-12, 1e-14)) << "parameter " << i;
    }
  }
}

TEST(SplitBackward, GivesTheGradientsOfOnePass) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)),
                            torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::Flatten(),
                            torch::nn::Linear(64, 5),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})),
                            torch::nn::GELU(), torch::nn::Linear(5, 2));
  net->to(at::kDouble);
  expect_same_gradients(*net, torch::randn({6, 3, 4, 4}, at::kDouble),
                        [&](const at::Tensor& x) { return net->forward(x).square().sum(); });
}

TEST(SplitBackward, GivesThoseOfABlockWithAttention) {
  torch::manual_seed(1);
  const auto gpt = nn::make_model(
      {.name = "gpt", .vocab_size = 7, .context = 4, .layers = 1, .heads = 2, .width = 8});
  gpt->to(at::kDouble);
  const auto& block = gpt->blocks()[1];
  torch::nn::Module of_block;
  for (const auto& [name, tensor] : gpt->owned_state(block)) {
    auto plain = name;
    std::ranges::replace(plain, '.', '_');
    of_block.register_parameter(plain, tensor);
  }
  expect_same_gradients(of_block, torch::randn({3, 4, 8}, at::kDouble),
                        [&](const at::Tensor& x) { return block.forward(x).square().sum(); });
}

// The second layer's inputs depend on the same parameter, so the parts cannot be separated there.
TEST(SplitBackward, TakesAParameterThatTwoLayersUse) {
  torch::nn::Linear layer(3, 3);
  layer->to(at::kDouble);
  expect_same_gradients(*layer, torch::randn({2, 3}, at::kDouble), [&](const at::Tensor& x) {
    return layer->forward(layer->forward(x).tanh()).sum();
  });
}

// Neither use depends on the other.
TEST(SplitBackward, CallsAHookOnceForAParameterThatIsUsedSideBySide) {
  torch::nn::Linear layer(3, 3);
  layer->to(at::kDouble);
  const auto forward = [&](const at::Tensor& x) {
    return (layer->forward(x) * layer->forward(x.sin())).sum();
  };
  expect_same_gradients(*layer, torch::randn({2, 3}, at::kDouble), forward);
  int calls = 0;
  const GradientHook hook(layer->weight, [&] { ++calls; });
  const auto leaf = torch::ones({2, 3}, at::kDouble).requires_grad_();
  SplitBackward({forward(leaf)}, {}, {leaf}).run_weights();
  EXPECT_EQ(calls, 1);
}

TEST(SplitBackward, TakesARootThatIsAParameter) {
  const auto weight = torch::ones({2}, at::kDouble).requires_grad_();
  const auto leaf = torch::ones({2}, at::kDouble).requires_grad_();
  const auto gradient = torch::full({2}, 3.0, at::kDouble);
  SplitBackward half({leaf * 2, weight}, {gradient, gradient}, {leaf});
  EXPECT_TRUE(half.take_inputs()[0].eq(6).all().item<bool>());
  half.run_weights();
  EXPECT_TRUE(weight.grad().eq(3).all().item<bool>());
}

// The first part releases everything that the second does not need.
TEST(SplitBackward, KeepsOnlyWhatTheSecondPartNeeds) {
  const auto weight = torch::ones({4, 4}, at::kDouble).requires_grad_();
  const auto leaf = torch::ones({2, 4}, at::kDouble).requires_grad_();
  at::Tensor saved = torch::ones({2, 4}, at::kDouble) * 3;  // only a factor of the result
  SplitBackward half({(at::matmul(leaf, weight) * saved).sum()}, {}, {leaf});
  EXPECT_EQ(saved.use_count(), 1u);
  half.run_weights();
  EXPECT_TRUE(weight.grad().eq(6).all().item<bool>());
}

TEST(SplitBackward, DoesAllInTheSecondPartWithoutInputs) {
  torch::nn::Linear layer(3, 3);
  SplitBackward half({layer->forward(torch::ones({2, 3})).sum()}, {}, {});
  EXPECT_FALSE(layer->weight.grad().defined());
  half.run_weights();
  EXPECT_TRUE(layer->weight.grad().eq(2).all().item<bool>());
}

}  // namespace
}  // namespace troika::compat
