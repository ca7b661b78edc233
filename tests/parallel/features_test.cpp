// Features beyond a plain step, each compared with the results of one process.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <memory>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/nn/sequential.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/sharded.h"

namespace troika::parallel {
namespace {

using comm::Group;
using torch::nn::Linear;
using torch::nn::LinearOptions;

Linear one_by_one() {
  return Linear(LinearOptions(1, 1).bias(false));
}

// Returns a loss whose gradient is `value`.
at::Tensor loss_of(Linear& layer, double value) {
  return layer->weight.sum() * value;
}

TEST(DataParallelFeatures, NoSyncOnlyAddsUp) {
  comm::local::run(3, [](Group group) {
    auto layer = one_by_one();
    DataParallel ddp(*layer, group);
    for (int step = 0; step < 3; ++step) {
      layer->zero_grad(true);
      {
        const auto guard = ddp.no_sync();
        loss_of(layer, group.rank()).backward();
        loss_of(layer, 10 * group.rank()).backward();
        EXPECT_EQ(ddp.launched(), 0u);
      }
      loss_of(layer, 100).backward();
      ddp.finish_backward();
      EXPECT_EQ(layer->weight.grad().item<float>(), 111.0f);
    }
  });
}

TEST(DataParallelFeatures, UnusedParametersCountAsZeroOrStayUndefined) {
  comm::local::run(2, [](Group group) {
    torch::nn::Sequential module(one_by_one(), one_by_one(), one_by_one());
    DataParallel ddp(*module, group,
                     {.bucket_bytes = 4, .first_bucket_bytes = 4, .find_unused_parameters = true});
    auto layer = [&](size_t i) { return Linear(module->ptr<torch::nn::LinearImpl>(i)); };
    for (int step = 0; step < 3; ++step) {
      module->zero_grad(true);
      auto everywhere = layer(0), on_one = layer(1);
      auto loss = loss_of(everywhere, 1);
      if (group.rank() == 1) loss = loss + loss_of(on_one, 4);
      loss.backward();
      ddp.finish_backward();
      EXPECT_EQ(layer(0)->weight.grad().item<float>(), 1.0f);
      EXPECT_EQ(layer(1)->weight.grad().item<float>(), 2.0f);
      EXPECT_FALSE(layer(2)->weight.grad().defined());
    }
  });
}

std::unique_ptr<Exchange> make_exchange(nn::Model& module, const Group& group, int stage,
                                        const DataParallelOptions& options) {
  if (stage == 0) return std::make_unique<DataParallel>(module, group, options);
  return std::make_unique<Sharded>(module, group,
                                   ShardedOptions{.stage = stage, .data_parallel = options});
}

// Returns the gradients of the parameters that this rank steps, by name.
std::map<std::string, std::vector<float>> gradients_of(const Exchange& exchange) {
  std::map<std::string, std::vector<float>> result;
  for (const auto& own : exchange.parameters()) {
    if (!own.tensor.grad().defined()) continue;
    for (int64_t i = 0; i < own.tensor.numel(); ++i) {
      result[own.name].push_back(own.tensor.grad().view(-1)[i].item<float>());
    }
  }
  return result;
}

// As after a checkpoint in the middle of a step: the gradients of earlier passes are loaded, and no
// later pass uses the second layer on any rank.
TEST(DataParallelFeatures, AStepGoesOnWithGradientsThatLaterPassesDoNotMake) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool strict : {false, true}) {
      comm::local::run(2, [&](Group group) {
        const auto module =
            nn::from_sequential(torch::nn::Sequential(one_by_one(), one_by_one(), one_by_one()));
        const auto exchange =
            make_exchange(*module, group, stage, {.find_unused_parameters = !strict});
        auto parameters = module->parameters();
        if (strict || group.rank() == 1) {
          parameters[1].mutable_grad() = at::full({1, 1}, 6.0 * group.rank());
        }
        exchange->continue_step();
        auto loss = parameters[0].sum();
        if (strict) loss = loss + 2 * parameters[2].sum();
        loss.backward();
        exchange->finish_backward();
        auto means = gradients_of(*exchange);
        // The shards of these small parameters lie on rank 0.
        const bool has_any = stage == 0 || group.rank() == 0;
        const auto expected = [&](float value) {
          return has_any ? std::vector{value} : std::vector<float>();
        };
        EXPECT_EQ(means["0.weight"], expected(1)) << "stage " << stage;
        EXPECT_EQ(means["1.weight"], expected(3)) << "stage " << stage;
        EXPECT_EQ(means["2.weight"], strict ? expected(2) : std::vector<float>())
            << "stage " << stage;
        // Only the gradients of this step.
        parameters[0].sum().backward();
        if (strict) {
          EXPECT_THROW(exchange->finish_backward(), Error) << "stage " << stage;
        } else {
          exchange->finish_backward();
        }
      });
    }
  }
}

TEST(DataParallelFeatures, StaticGraphTakesGradientsInParts) {
  comm::local::run(2, [](Group group) {
    torch::nn::Sequential module(one_by_one(), one_by_one());
    auto layer = Linear(module->ptr<torch::nn::LinearImpl>(0));
    DataParallel ddp(*module, group, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      module->zero_grad(true);
      loss_of(layer, 1).backward();
      EXPECT_EQ(ddp.launched(), 0u);
      loss_of(layer, 2.0 * group.rank()).backward();
      EXPECT_EQ(ddp.launched(), step == 0 ? 0u : 1u);
      ddp.finish_backward();
      EXPECT_EQ(layer->weight.grad().item<float>(), 2.0f);
      EXPECT_FALSE(module->parameters()[1].grad().defined());
    }
  });
}

TEST(DataParallelFeatures, BucketsTakeRankZerosOrderOnce) {
  comm::local::run(2, [](Group group) {
    torch::nn::Sequential module(one_by_one(), one_by_one());
    DataParallel ddp(*module, group, {.bucket_bytes = 4, .first_bucket_bytes = 4});
    EXPECT_THAT(ddp.bucket_order(), testing::ElementsAre("1.weight", "0.weight"));
    for (int step = 0; step < 3; ++step) {
      // The first layer's gradient comes first: on rank 0 in the first step, then on rank 1.
      const size_t first = (step == 0) == (group.rank() == 0) ? 0 : 1;
      for (const size_t i : {first, 1 - first}) {
        auto layer = Linear(module->ptr<torch::nn::LinearImpl>(i));
        (loss_of(layer, step + 1.0 + group.rank() + 10.0 * static_cast<double>(i))).backward();
      }
      ddp.finish_backward();
      EXPECT_THAT(ddp.bucket_order(), testing::ElementsAre("0.weight", "1.weight"));
      EXPECT_EQ(module->parameters()[0].grad().item<float>(), step + 1.5f);
      EXPECT_EQ(module->parameters()[1].grad().item<float>(), step + 11.5f);
      module->zero_grad(true);
    }
  });
}

TEST(DataParallelFeatures, UnevenDataMakesWeightedMeansAndSameSteps) {
  comm::local::run(3, [](Group group) {
    auto layer = one_by_one();
    DataParallel ddp(*layer, group);
    int steps = 0;
    const auto samples = [&] { return steps > group.rank() ? 0.0 : group.rank() + 1.0; };
    while (ddp.begin_step(samples())) {
      layer->zero_grad(true);
      double sum = 0, count = 0;
      for (int r = steps; r < 3; ++r) sum += (r + 1) * (r + 5), count += r + 1;
      if (samples() > 0) loss_of(layer, group.rank() + 5).backward();
      ddp.finish_backward();
      EXPECT_NEAR(layer->weight.grad().item<double>(), sum / count, 1e-6);
      ++steps;
    }
    EXPECT_EQ(steps, 3);
    auto other = one_by_one();
    DataParallel by_ranks(*other, group, {.divisor = Divisor::ranks});
    EXPECT_TRUE(by_ranks.begin_step(group.rank() == 0 ? 1 : 0));
    if (group.rank() == 0) loss_of(other, 6).backward();
    by_ranks.finish_backward();
    EXPECT_EQ(other->weight.grad().item<float>(), 2.0f);
  });
}

TEST(DataParallelFeatures, ClipsByTheNormOfAllGradients) {
  comm::local::run(2, [](Group group) {
    torch::nn::Sequential module(one_by_one(), one_by_one());
    DataParallel ddp(*module, group, {.bucket_bytes = 4, .first_bucket_bytes = 4});
    for (size_t i = 0; i < 2; ++i) {
      auto layer = Linear(module->ptr<torch::nn::LinearImpl>(i));
      loss_of(layer, (i == 0 ? 3.0 : 4.0) * 2 * group.rank()).backward();
    }
    ddp.finish_backward();
    EXPECT_EQ(ddp.clip_grad_norm(10), 5.0);
    EXPECT_EQ(ddp.clip_grad_norm(1), 5.0);
    EXPECT_FLOAT_EQ(module->parameters()[0].grad().item<float>(), 0.6f);
    EXPECT_FLOAT_EQ(module->parameters()[1].grad().item<float>(), 0.8f);
  });
}

TEST(DataParallelFeatures, HooksTakeTheMeansPlaceFromTheSecondStep) {
  comm::local::run(2, [](Group group) {
    auto layer = one_by_one();
    DataParallel ddp(*layer, group, {.hook = [](const Group& own, const auto& bucket) {
      own.all_reduce(bucket.flat);
    }});
    for (const float expected : {2.0f, 4.0f, 4.0f}) {
      layer->zero_grad(true);
      loss_of(layer, 1 + 2.0 * group.rank()).backward();
      ddp.finish_backward();
      EXPECT_EQ(layer->weight.grad().item<float>(), expected);
    }
  });
}

TEST(DataParallelFeatures, CodecsAverage) {
  for (const char* name : {"fp16", "bf16", "powersgd", "topk", "int8"}) {
    comm::local::run(2, [&](Group group) {
      auto layer = one_by_one();
      DataParallel ddp(*layer, group, {.codec = {.name = name}});
      for (int step = 0; step < 3; ++step) {
        layer->zero_grad(true);
        loss_of(layer, 1 + 2.0 * group.rank()).backward();
        ddp.finish_backward();
        EXPECT_NEAR(layer->weight.grad().item<double>(), 2, 0.02) << name;
      }
      EXPECT_EQ(ddp.codec()->name(), name);
    });
  }
}

TEST(DataParallelFeatures, RefreshFollowsFreezing) {
  comm::local::run(2, [](Group group) {
    torch::nn::Sequential module(one_by_one(), one_by_one());
    DataParallel ddp(*module, group);
    module->parameters()[1].requires_grad_(false);
    ddp.refresh();
    auto layer = Linear(module->ptr<torch::nn::LinearImpl>(0));
    loss_of(layer, 2.0 * group.rank()).backward();
    ddp.finish_backward();
    EXPECT_EQ(layer->weight.grad().item<float>(), 1.0f);
    module->parameters()[1].requires_grad_(true);
    EXPECT_ERROR(ddp.finish_backward(), ErrorKind::usage,
                 "[parallel] parameters were frozen, unfrozen, added, replaced or cast; got "
                 "1.weight as number 1 that requires a gradient, expected none (call refresh() "
                 "after such a change, on all ranks)");
  });
}

TEST(DataParallelFeatures, DifferentBitsNameParameterAndRank) {
  comm::local::run(2, [](Group group) {
    auto layer = one_by_one();
    {
      const torch::NoGradGuard no_grad;
      layer->weight.fill_(group.rank());
    }
    try {
      const DataParallel ddp(*layer, group, {.copy_state = false});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("rank 1's module is not rank 0's; got weight of"));
    }
  });
}

}  // namespace
}  // namespace troika::parallel
