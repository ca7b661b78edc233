#include "troika/nn/layer_norm.h"

#include <gtest/gtest.h>

#include "troika/compat/layer_norm.h"

namespace troika::nn {
namespace {

struct NormPass {
  at::Tensor output, of_input, of_weight, of_bias;
};

NormPass norm_pass(at::ScalarType type) {
  torch::manual_seed(1);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({48}).eps(1e-3));
  torch::nn::init::normal_(norm->weight, 1, 0.3);
  torch::nn::init::normal_(norm->bias, 0, 0.3);
  // Numbers that bfloat16 represents exactly, so that only the computation differs between types.
  const auto some = [](const at::Tensor& tensor) { return tensor.to(at::kBFloat16); };
  norm->to(at::kBFloat16);
  norm->to(type);
  const auto input = some(torch::randn({5, 7, 48}) * 3 + 1).to(type).requires_grad_();
  const auto output = layer_norm(*norm, input);
  output.backward(some(torch::randn({5, 7, 48})).to(type));
  return {output.detach(), input.grad(), norm->weight.grad(), norm->bias.grad()};
}

TEST(LayerNorm, IsThatOfFloat32RoundedOnceInBfloat16) {
  const auto exact = norm_pass(at::kFloat), found = norm_pass(at::kBFloat16);
  const auto expect_near = [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.scalar_type(), at::kBFloat16);
    const auto difference = (a.to(at::kFloat) - b).abs();
    EXPECT_LE((difference - b.abs() / 128).max().item<float>(), 1.0 / 128);
  };
  expect_near(found.output, exact.output);
  expect_near(found.of_input, exact.of_input);
  // LibTorch's own kernel sums these gradients in bfloat16.
  if (!compat::has_fast_layer_norm_in_16_bits()) {
    expect_near(found.of_weight, exact.of_weight);
    expect_near(found.of_bias, exact.of_bias);
    EXPECT_TRUE(found.output.equal(exact.output.to(at::kBFloat16)));
    EXPECT_TRUE(found.of_input.equal(exact.of_input.to(at::kBFloat16)));
  }
}

TEST(LayerNorm, IsLibTorchsInOtherTypes) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({48}));
  for (const auto type : {at::kFloat, at::kDouble}) {
    norm->to(type);
    const auto input = torch::randn({5, 48}, type);
    EXPECT_TRUE(layer_norm(*norm, input).equal(norm->forward(input)));
  }
}

}  // namespace
}  // namespace troika::nn
