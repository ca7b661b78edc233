#include "troika/nn/dense.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "troika/compat/autocast.h"
#include "troika/compat/torch.h"
#include "troika/nn/causal_products.h"
#include "troika/nn/gelu.h"
#include "troika/nn/weight_layout.h"

namespace troika::nn {
namespace {

// Computes the layer with LibTorch's own operators.
at::Tensor layer_of_operators(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& bias) {
  auto sizes = input.sizes().vec();
  sizes.back() = weight.size(1);
  return at::addmm(bias, input.flatten(0, -2), weight).view(sizes);
}

struct Pass {
  at::Tensor output, of_input, of_weight, of_bias;
};

template <typename Layer>
Pass pass(const Layer& layer, at::ScalarType type, bool casts, bool trains_weight = true,
          WeightLayout layout = WeightLayout::in_out) {
  torch::manual_seed(1);
  const auto make = [&](at::IntArrayRef sizes) { return torch::randn(sizes, type); };
  const at::Tensor input = make({3, 5, 8}).requires_grad_();
  at::Tensor weight = make({8, 6});
  if (layout == WeightLayout::out_in) weight = weight.t().contiguous().t();
  weight.requires_grad_(trains_weight);
  const at::Tensor bias = make({6}).requires_grad_(trains_weight);
  at::Tensor output;
  {
    const compat::AutocastGuard autocast(at::kCPU, {casts, at::kBFloat16});
    output = layer(input, weight, bias);
  }
  // Transposed, as attention returns it.
  const at::Tensor gradient = torch::randn({5, 3, 6}).to(output.scalar_type()).transpose(0, 1);
  output.backward(gradient);
  return {output.detach(), input.grad(), weight.grad(), bias.grad()};
}

void expect_same(const Pass& ours, const Pass& theirs) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
  };
  EXPECT_TRUE(same(ours.output, theirs.output));
  EXPECT_TRUE(same(ours.of_input, theirs.of_input));
  EXPECT_TRUE(same(ours.of_weight, theirs.of_weight));
  EXPECT_TRUE(same(ours.of_bias, theirs.of_bias));
}

TEST(Dense, HasTheBitsOfLibTorchsOperators) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    expect_same(pass(dense, type, false), pass(layer_of_operators, type, false));
  }
}

TEST(Dense, HasTheBitsOfLibTorchsOperatorsUnderAutocast) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    expect_same(pass(dense, type, true), pass(layer_of_operators, type, true));
  }
}

// The gradient has the memory layout of the weight, so that it need not be reordered.
TEST(Dense, HasTheBitsOfLibTorchsOperatorsWithWeightsOutIn) {
  for (const bool casts : {false, true}) {
    const auto ours = pass(dense, at::kFloat, casts, /*trains_weight=*/true, WeightLayout::out_in);
    expect_same(ours, pass(layer_of_operators, at::kFloat, casts, /*trains_weight=*/true,
                           WeightLayout::out_in));
    EXPECT_EQ(ours.of_weight.strides(), at::IntArrayRef({1, 8}));
  }
}

TEST(Dense, GivesNoGradientsToFrozenParameters) {
  const auto frozen = pass(dense, at::kFloat, false, /*trains_weight=*/false);
  EXPECT_FALSE(frozen.of_weight.defined());
  EXPECT_FALSE(frozen.of_bias.defined());
  expect_same(frozen, pass(layer_of_operators, at::kFloat, false, /*trains_weight=*/false));
}

TEST(Dense, SeesWhatIsChangedInPlace) {
  const at::Tensor weight = torch::randn({8, 6}).requires_grad_();
  const at::Tensor input = torch::randn({3, 8});
  const at::Tensor output = dense(input, weight, torch::zeros({6}));
  input.zero_();
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST(Dense, GoesBackOnce) {
  const at::Tensor weight = torch::randn({8, 6}).requires_grad_();
  const at::Tensor output = dense(torch::randn({3, 8}), weight, torch::zeros({6}));
  output.sum().backward();
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

void refuses_create_graph(const at::Tensor& output, const std::string& name) {
  EXPECT_ERROR(
      output.sum().backward({}, /*retain_graph=*/{}, /*create_graph=*/true), ErrorKind::usage,
      "[compat] " + name +
          " may be differentiated once; got a backward pass with create_graph, expected one "
          "without (make the model of LibTorch's operators for gradients of gradients)");
}

TEST(Kernels, RefuseGradientsOfGradients) {
  const at::Tensor input = torch::randn({2, 4, 12}).requires_grad_();
  refuses_create_graph(dense(input, torch::randn({12, 12}), torch::zeros({12})), "nn::dense");
  refuses_create_graph(gelu_tanh(input), "nn::gelu_tanh");
  refuses_create_graph(causal_products(input, 2), "attention by products");
}

}  // namespace
}  // namespace troika::nn
