#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"

namespace troika::nn {
namespace {

struct Trained {
  at::Tensor output, of_input, of_weight, of_bias, mean, var, batches;
};

Trained train(const torch::nn::BatchNormOptions& options, at::ScalarType type,
              at::MemoryFormat format, bool fused) {
  torch::manual_seed(1);
  BatchNorm norm(options);
  if (type == at::kDouble) norm->to(type);
  if (norm->weight.defined()) {
    const at::NoGradGuard no_grad;
    norm->weight.uniform_(0.5, 2);
    norm->bias.uniform_(-1, 1);
  }
  const at::Tensor input = torch::randn({4, 6, 5, 3}).to(type).contiguous(format).requires_grad_();
  at::Tensor output;
  for (int i = 0; i < 2; ++i) {
    output = fused ? norm->forward_relu(input) : norm->forward(input).relu_();
    output.backward(torch::randn(output.sizes()).to(type).contiguous(format));
  }
  const auto grad = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.grad() : at::Tensor();
  };
  return {output.detach(),    input.grad(),      grad(norm->weight),       grad(norm->bias),
          norm->running_mean, norm->running_var, norm->num_batches_tracked};
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.strides() == b.strides() && torch::equal(a, b);
}

void expect_same(const torch::nn::BatchNormOptions& options, at::ScalarType type,
                 at::MemoryFormat format) {
  const auto ours = train(options, type, format, true),
             theirs = train(options, type, format, false);
  EXPECT_TRUE(same(ours.output, theirs.output));
  EXPECT_TRUE(same(ours.of_input, theirs.of_input));
  EXPECT_TRUE(same(ours.of_weight, theirs.of_weight));
  EXPECT_TRUE(same(ours.of_bias, theirs.of_bias));
  EXPECT_TRUE(same(ours.mean, theirs.mean));
  EXPECT_TRUE(same(ours.var, theirs.var));
  EXPECT_TRUE(same(ours.batches, theirs.batches));
}

TEST(BatchNormRelu, HasTheBitsOfBoth) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      SCOPED_TRACE(c10::toString(type));
      const torch::nn::BatchNormOptions options(6);
      expect_same(options, type, format);
    }
  }
}

TEST(BatchNormRelu, HasTheBitsOfBothWithoutParametersStatisticsAndMomentum) {
  for (const auto& options : {torch::nn::BatchNormOptions(6).affine(false),
                              torch::nn::BatchNormOptions(6).track_running_stats(false),
                              torch::nn::BatchNormOptions(6).momentum(c10::nullopt)}) {
    expect_same(options, at::kFloat, at::MemoryFormat::Contiguous);
  }
}

TEST(BatchNormRelu, EndsWithItsGraph) {
  BatchNorm norm(6);
  c10::weak_intrusive_ptr<c10::StorageImpl> memory(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
          norm->forward_relu(torch::randn({2, 6, 3})).storage().unsafeGetStorageImpl()));
  EXPECT_TRUE(memory.expired());
}

TEST(BatchNormRelu, SeesThatItsOutputWasChangedInPlace) {
  BatchNorm norm(6);
  const at::Tensor output = norm->forward_relu(torch::randn({2, 6, 3}));
  output.add_(1);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST(BatchNormRelu, RefusesGradientsOfGradients) {
  BatchNorm norm(6);
  const at::Tensor output = norm->forward_relu(torch::randn({2, 6, 3}));
  EXPECT_ERROR(
      output.sum().backward({}, /*retain_graph=*/{}, /*create_graph=*/true), ErrorKind::usage,
      "[compat] batch norm with ReLU on the CPU may be differentiated once; got a backward "
      "pass with create_graph, expected one without (make the model of LibTorch's "
      "operators for gradients of gradients)");
}

}  // namespace
}  // namespace troika::nn
