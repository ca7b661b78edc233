#include "troika/parallel/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/zoo.h"

namespace troika::parallel {
namespace {

using comm::Group;
using nn::BatchNorm;
using torch::nn::BatchNormOptions;

constexpr int kSteps = 3;
// The number of samples of each rank in each step.
const std::vector<int64_t> kShares = {4, 0, 3};

at::Tensor all_inputs(int step) {
  return at::sin(at::arange(7 * 3 * 4, at::kDouble) * 0.7 + step).view({7, 3, 2, 2}) * 3 + 100;
}

// The weights of the outputs in the loss.
at::Tensor all_weights() {
  return at::cos(at::arange(7 * 3 * 4, at::kDouble)).view({7, 3, 2, 2});
}

struct Result {
  at::Tensor output, gradient;
};

// A pass as in a model: the layer's input is not a leaf, and its output is modified in place.
template <typename Module>
Result pass(Module& module, int step, int64_t first, int64_t count) {
  const auto x = all_inputs(step).narrow(0, first, count).clone().requires_grad_();
  const auto y = module->forward(x * 1).relu_();
  (y * all_weights().narrow(0, first, count)).sum().backward();
  return {y.detach(), x.grad()};
}

void expect_close(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_TRUE(got.allclose(expected, 1e-10, 1e-10)) << got << "\nexpected\n" << expected;
}

// Returns a layer in float64 with changed parameters.
template <typename Layer>
void prepare(Layer& layer) {
  layer->to(torch::kDouble);
  if (!layer->options.affine()) return;
  const at::NoGradGuard no_grad;
  layer->weight.copy_(at::tensor({0.5, -2.0, 3.0}));
  layer->bias.copy_(at::tensor({0.1, 0.2, -0.3}));
}

// Batches of 4, 0 and 3 samples on three ranks against LibTorch's layer on one of 7.
void expect_equal_to_one_process(const BatchNormOptions& options) {
  torch::nn::BatchNorm2d reference(options);
  prepare(reference);
  std::vector<Result> expected;
  for (int step = 0; step < kSteps; ++step) expected.push_back(pass(reference, step, 0, 7));
  reference->eval();
  expected.push_back(pass(reference, kSteps, 0, 7));

  comm::local::run(3, [&](Group group) {
    const int64_t count = kShares[static_cast<size_t>(group.rank())];
    const int64_t first = group.rank() == 0 ? 0 : 4;
    BatchNorm layer(options);
    prepare(layer);
    EXPECT_EQ(convert_batch_norm(*layer, group).size(), 1u);
    for (int step = 0; step < kSteps; ++step) {
      const auto got = pass(layer, step, first, count);
      expect_close(got.output, expected[step].output.narrow(0, first, count));
      expect_close(got.gradient, expected[step].gradient.narrow(0, first, count));
    }
    if (options.track_running_stats()) {
      layer->eval();
      const auto got = pass(layer, kSteps, first, count);
      expect_close(got.output, expected[kSteps].output.narrow(0, first, count));
      expect_close(got.gradient, expected[kSteps].gradient.narrow(0, first, count));
      expect_close(layer->running_mean, reference->running_mean);
      expect_close(layer->running_var, reference->running_var);
      EXPECT_EQ(layer->num_batches_tracked.item<int64_t>(), kSteps);
    }
    if (!options.affine()) return;
    group.all_reduce(layer->weight.grad());
    group.all_reduce(layer->bias.grad());
    // Without running statistics, evaluation takes those of a rank's own batch.
    if (!options.track_running_stats()) return;
    expect_close(layer->weight.grad(), reference->weight.grad());
    expect_close(layer->bias.grad(), reference->bias.grad());
  });
}

TEST(SyncBatchNorm, OneProcessIsTheOracle) {
  expect_equal_to_one_process(BatchNormOptions(3));
}

TEST(SyncBatchNorm, WithoutMomentumKeepsTheMeanOfAllBatches) {
  expect_equal_to_one_process(BatchNormOptions(3).momentum({}));
}

TEST(SyncBatchNorm, WithoutParameters) {
  expect_equal_to_one_process(BatchNormOptions(3).affine(false));
}

TEST(SyncBatchNorm, WithoutRunningStatistics) {
  expect_equal_to_one_process(BatchNormOptions(3).track_running_stats(false));
}

TEST(SyncBatchNorm, ConvertsLayersOfLibTorchInASequential) {
  comm::local::run(2, [](Group group) {
    torch::nn::BatchNorm2d layer(3);
    layer->to(torch::kDouble);
    torch::nn::Sequential module(layer);
    EXPECT_THAT(convert_batch_norm(*module, group), testing::ElementsAre("0"));
    pass(module, 0, 0, group.rank() == 0 ? 5 : 0);
    const auto expected = all_inputs(0).narrow(0, 0, 5).mean(std::vector<int64_t>{0, 2, 3}) * 0.1;
    expect_close(layer->running_mean, expected);
    EXPECT_TRUE(layer->weight.grad().defined());
    EXPECT_EQ(module->named_parameters().keys(), (std::vector<std::string>{"0.weight", "0.bias"}));
  });
}

TEST(SyncBatchNorm, ConvertsEveryModelOfTheZoo) {
  auto group = comm::local::alone();
  const auto count = [&](const char* name, int64_t image_size) {
    const auto model = nn::make_model({.name = name, .image_size = image_size});
    return convert_batch_norm(*model, group).size();
  };
  EXPECT_EQ(count("resnet20", 32), 19u);
  EXPECT_EQ(count("resnet18", 32), 20u);
  EXPECT_EQ(count("vgg11_bn_cifar", 32), 8u);
  EXPECT_EQ(count("inception_v3", 299), 94u);
  EXPECT_EQ(count("mlp", 32), 0u);
}

// After that, each rank behaves like LibTorch's layer on its own share, and calls no collective.
TEST(SyncBatchNorm, CanBeUndone) {
  comm::local::run(4, [](Group group) {
    BatchNorm layer(3);
    torch::nn::BatchNorm2d reference(3);
    prepare(layer);
    prepare(reference);
    { const ScopedSyncBatchNorm scope(*layer, group); }
    const auto calls = group.counters().messages;
    const int64_t first = group.rank(), count = 4 - group.rank();
    for (int step = 0; step < kSteps; ++step) {
      const auto got = pass(layer, step, first, count);
      const auto expected = pass(reference, step, first, count);
      expect_close(got.output, expected.output);
      expect_close(got.gradient, expected.gradient);
    }
    expect_close(layer->running_mean, reference->running_mean);
    expect_close(layer->running_var, reference->running_var);
    EXPECT_EQ(group.counters().messages, calls);
  });
}

TEST(SyncBatchNorm, GivesBackTheTrainingThatWasSetBefore) {
  comm::local::run(4, [](Group group) {
    BatchNorm layer(3);
    layer->set_training([](nn::BatchNormImpl&, const at::Tensor& input) { return input * 2; });
    const auto input = at::ones({2, 3});
    {
      const ScopedSyncBatchNorm scope(*layer, group);
      EXPECT_FALSE(layer->forward(input).equal(input * 2));
    }
    EXPECT_TRUE(layer->forward(input).equal(input * 2));
  });
}

TEST(SyncBatchNorm, GivesALayerBackItsStatisticsWhenTheirTypeHasChanged) {
  comm::local::run(4, [](Group group) {
    torch::nn::BatchNorm1d norm(3);
    torch::nn::Sequential module(norm);
    {
      const ScopedSyncBatchNorm scope(*module, group);
      module->to(at::kDouble);
      module->forward(at::full({2, 3}, group.rank(), at::kDouble));
    }
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kDouble);
    EXPECT_NEAR(norm->running_mean[0].item<double>(), 0.15, 1e-6) << "the mean of all ranks";
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
    EXPECT_TRUE(module->buffers()[0].is_same(norm->running_mean));
    norm->eval();
    EXPECT_EQ(module->forward(at::ones({2, 3}, at::kDouble)).scalar_type(), at::kDouble);
  });
}

TEST(SyncBatchNorm, GivesASequentialItsLayerBack) {
  comm::local::run(4, [](Group group) {
    torch::nn::BatchNorm1d norm(3);
    torch::nn::Sequential module(norm);
    {
      const ScopedSyncBatchNorm scope(*module, group);
      EXPECT_EQ(module->children()[0]->as<torch::nn::BatchNorm1dImpl>(), nullptr);
      module->forward(at::full({2, 3}, group.rank(), at::kFloat));
      module->eval();
    }
    EXPECT_EQ(module->children()[0], norm.ptr());
    EXPECT_FALSE(norm->is_training());
    EXPECT_NEAR(norm->running_mean[0].item<double>(), 0.15, 1e-6) << "the mean of all ranks";
    norm->train();
    // Alone, and through the list that forward() uses.
    if (group.rank() == 3) module->forward(at::full({2, 3}, 10.0, at::kFloat));
    EXPECT_NEAR(norm->running_mean[0].item<double>(), group.rank() == 3 ? 1.135 : 0.15, 1e-6);
  });
}

TEST(SyncBatchNorm, HalfPrecisionIsComputedInFloat32) {
  comm::local::run(2, [](Group group) {
    BatchNorm layer(BatchNormOptions(3).momentum(1.0));
    convert_batch_norm(*layer, group);
    // Their mean lies between two neighbours in bfloat16.
    const auto input = at::full({64, 3, 8, 8}, 10 + group.rank() / 16.0, at::kBFloat16);
    const auto output = layer->forward(input);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_NEAR(output.to(at::kFloat).mean().item<double>(), 2 * group.rank() - 1, 0.02);
    EXPECT_NEAR(layer->running_mean[0].item<double>(), 10 + 1 / 32.0, 1e-6);
  });
}

TEST(SyncBatchNorm, NeedsTwoValuesAChannel) {
  comm::local::run(2, [](Group group) {
    BatchNorm layer(2);
    convert_batch_norm(*layer, group);
    const int64_t count = group.rank();
    EXPECT_ERROR(
        layer->forward(at::ones({count, 2})), ErrorKind::usage,
        "[parallel] batch norm in training over all ranks; got 1 values a channel, input [" +
            std::to_string(count) + ", 2] on rank " + std::to_string(group.rank()) +
            ", expected at least 2");
  });
}

TEST(SyncBatchNorm, NamesWhatCannotBeConverted) {
  struct Holder : torch::nn::Module {
    Holder() {
      register_module("ours", ours);
      register_module("norm", torch::nn::BatchNorm1d(2));
    }
    BatchNorm ours{2};
  };
  Holder module;
  EXPECT_ERROR(convert_batch_norm(module, comm::local::alone()), ErrorKind::usage,
               "[parallel] batch norm norm cannot be made to span ranks; got a layer of LibTorch "
               "held by a module's own member, expected nn::BatchNorm, or a child of a Sequential");
}

}  // namespace
}  // namespace troika::parallel
