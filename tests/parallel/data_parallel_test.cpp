#include "troika/parallel/data_parallel.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/nn/memory_format.h"

namespace troika::parallel {
namespace {

using comm::Group;

TEST(DataParallel, GivesEveryRankTheStateOfRankZero) {
  comm::local::run(3, [](Group group) {
    torch::nn::BatchNorm1d module(4);
    {
      const torch::NoGradGuard no_grad;
      module->weight.fill_(group.rank() + 1.0);
      module->running_mean.fill_(group.rank() + 5.0);
      module->num_batches_tracked.fill_(group.rank() + 7);
    }
    const DataParallel ddp(*module, group);
    EXPECT_EQ(module->weight[0].item<double>(), 1.0);
    EXPECT_EQ(module->running_mean[3].item<double>(), 5.0);
    EXPECT_EQ(module->num_batches_tracked.item<int64_t>(), 7);
  });
}

TEST(DataParallel, BringsBuffersIntoLineAfterEachStep) {
  for (const bool wanted : {true, false}) {
    comm::local::run(2, [&](Group group) {
      torch::nn::BatchNorm1d module(2);
      DataParallel ddp(*module, group, {.broadcast_buffers = wanted});
      const auto input = torch::full({3, 2}, 1.0 + group.rank());
      module->forward(input).sum().backward();
      ddp.finish_backward();
      const auto means = torch::empty({2, 2});
      group.all_gather(means, module->running_mean).wait();
      EXPECT_EQ(means[0].equal(means[1]), wanted);
      EXPECT_NEAR(means[0][0].item<double>(), 0.1, 1e-6) << "rank 0's own statistics";
    });
  }
}

TEST(DataParallel, AveragesWhileBackwardGoesOn) {
  comm::local::run(2, [](Group group) {
    torch::nn::Sequential module(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    DataParallel ddp(*module, group, {.bucket_bytes = 1, .first_bucket_bytes = 1});
    ASSERT_EQ(ddp.bucket_count(), 4u);
    const auto hidden = module[0]->as<torch::nn::Linear>()->forward(torch::ones({2, 4}));
    size_t launched_before_first_layer = 0;
    hidden.register_hook([&](const at::Tensor&) { launched_before_first_layer = ddp.launched(); });
    module[1]->as<torch::nn::Linear>()->forward(hidden).sum().backward();
    // Weight and bias of the last layer may come in either order around the hook's node.
    EXPECT_GE(launched_before_first_layer, 1u);
    EXPECT_EQ(ddp.launched(), 4u);
    ddp.finish_backward();
    EXPECT_EQ(ddp.launched(), 0u);
  });
}

TEST(DataParallel, GradientsAreViewsOfBuckets) {
  comm::local::run(2, [](Group group) {
    torch::nn::Linear module(3, 2);
    DataParallel ddp(*module, group);
    bool first = true;
    const void* place = nullptr;  // from the second step on, when buckets have their final order
    for (const bool set_to_none : {true, true, false, true}) {
      module->zero_grad(set_to_none);
      (module->forward(torch::ones({1, 3})).sum() * (group.rank() + 1.0)).backward();
      ddp.finish_backward();
      EXPECT_TRUE(module->weight.grad().eq(1.5).all().item<bool>());
      if (std::exchange(first, false)) continue;
      if (!place) place = module->weight.grad().data_ptr();
      EXPECT_EQ(module->weight.grad().data_ptr(), place);
    }
  });
}

TEST(DataParallel, FrozenParametersStayOut) {
  comm::local::run(2, [](Group group) {
    torch::nn::Linear module(3, 2);
    module->bias.requires_grad_(false);
    DataParallel ddp(*module, group);
    module->forward(torch::ones({1, 3})).sum().backward();
    ddp.finish_backward();
    EXPECT_FALSE(module->bias.grad().defined());
  });
}

TEST(DataParallel, NamesParametersWithoutGradient) {
  auto group = comm::local::alone();
  torch::nn::Sequential module(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  DataParallel ddp(*module, group);
  module[0]->as<torch::nn::Linear>()->forward(torch::ones({1, 2})).sum().backward();
  EXPECT_ERROR(
      ddp.finish_backward(), ErrorKind::usage,
      "[parallel] parameters got no gradient in this backward pass; got none for 1.weight, "
      "1.bias, expected every parameter to take part in the loss (set "
      "find_unused_parameters, or call requires_grad_(false) on unused ones before "
      "DataParallel is made)");
}

TEST(DataParallel, RefusesASecondBackward) {
  auto group = comm::local::alone();
  torch::nn::Linear module(torch::nn::LinearOptions(2, 2).bias(false));
  DataParallel ddp(*module, group);
  module->forward(torch::ones({1, 2})).sum().backward();
  EXPECT_ERROR(module->forward(torch::ones({1, 2})).sum().backward(), ErrorKind::usage,
               "[parallel] the gradient of weight was made twice in one step; expected one "
               "backward pass, then finish_backward() (was finish_backward() called after the last "
               "one? Use no_sync() for all but the last backward pass of a step, or static_graph "
               "where one pass makes it in parts)");
}

TEST(DataParallel, TellsEveryRankWhoseModuleDiffers) {
  std::atomic<int> told = 0;
  const auto body = [&](Group group) {
    torch::nn::Linear module(3, group.rank() == 2 ? 5 : 4);
    try {
      const DataParallel ddp(*module, group);
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "[parallel] rank 2's module is not rank 0's; got parameter weight Float [5, 3] "
                   "where rank 0 has parameter weight Float [4, 3] (every rank must build the same "
                   "model)");
      ++told;
    }
  };
  comm::local::run(3, body);
  EXPECT_EQ(told, 3);
}

// Buckets hold gradients in the memory layout of the parameters, so different layouts would average
// different elements.
TEST(DataParallel, RanksMustLayOutAlike) {
  comm::local::run(2, [](Group group) {
    torch::nn::Conv2d module(torch::nn::Conv2dOptions(3, 4, 2).bias(false));
    if (group.rank() == 1) nn::lay_out(*module, at::MemoryFormat::ChannelsLast);
    EXPECT_ERROR(const DataParallel ddp(*module, group), ErrorKind::usage,
                 "[parallel] rank 1's module is not rank 0's; got parameter weight Float "
                 "[4, 3, 2, 2] of strides [12, 1, 6, 3] where rank 0 has parameter weight Float "
                 "[4, 3, 2, 2] (every rank must build the same model)");
  });
}

}  // namespace
}  // namespace troika::parallel
