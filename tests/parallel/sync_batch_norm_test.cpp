#include "troika/parallel/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"

namespace troika::parallel {
namespace {

using comm::Group;

at::Tensor all_inputs() {
  return at::sin(at::arange(7 * 3 * 4, at::kDouble) * 0.7).view({7, 3, 2, 2}) * 3 + 100;
}

struct Result {
  at::Tensor output, gradient, mean, variance;
};

template <typename Module>
Result pass(Module& module, const torch::nn::BatchNorm2d& state, const at::Tensor& input,
            const at::Tensor& weights) {
  const auto x = input.clone().requires_grad_();
  const auto y = module->forward(x);
  (y * weights).sum().backward();
  return {y.detach(), x.grad(), state->running_mean, state->running_var};
}

// Batches of 4, 0 and 3 samples on three ranks against one of 7.
TEST(SyncBatchNorm, OneProcessIsTheOracle) {
  const auto inputs = all_inputs();
  const auto weights = at::cos(at::arange(inputs.numel(), at::kDouble)).view(inputs.sizes());
  torch::nn::BatchNorm2d reference(3);
  reference->to(torch::kDouble);
  const auto expected = pass(reference, reference, inputs, weights);
  comm::local::run(3, [&](Group group) {
    const int64_t first = group.rank() == 0 ? 0 : 4;
    const int64_t count = std::vector<int64_t>{4, 0, 3}[static_cast<size_t>(group.rank())];
    torch::nn::BatchNorm2d layer(3);
    layer->to(torch::kDouble);
    torch::nn::Sequential module(layer);
    EXPECT_THAT(convert_batch_norm(*module, group), testing::ElementsAre("0"));
    const auto got =
        pass(module, layer, inputs.narrow(0, first, count), weights.narrow(0, first, count));
    EXPECT_TRUE(got.output.allclose(expected.output.narrow(0, first, count), 1e-10, 1e-10));
    EXPECT_TRUE(got.gradient.allclose(expected.gradient.narrow(0, first, count), 1e-10, 1e-10));
    EXPECT_TRUE(got.mean.allclose(expected.mean, 1e-10, 1e-10));
    EXPECT_TRUE(got.variance.allclose(expected.variance, 1e-10, 1e-10));
    group.all_reduce(layer->weight.grad());
    EXPECT_TRUE(layer->weight.grad().allclose(reference->weight.grad(), 1e-10, 1e-10));
  });
}

TEST(SyncBatchNorm, NamesWhatCannotBeConverted) {
  struct Holder : torch::nn::Module {
    Holder() { register_module("norm", torch::nn::BatchNorm1d(2)); }
  };
  Holder module;
  EXPECT_ERROR(convert_batch_norm(module, comm::local::alone()), ErrorKind::usage,
               "[parallel] batch norm norm cannot be made to span ranks; got a layer of LibTorch "
               "held by a module's own member, expected parallel::SyncBatchNorm, or a child "
               "of a Sequential");
}

}  // namespace
}  // namespace troika::parallel
