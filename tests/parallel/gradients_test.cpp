// Gradients of all kinds.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel {
namespace {

using comm::Group;

// Holds the given tensors as parameters.
struct Holder : torch::nn::Module {
  at::Tensor add(const std::string& name, const at::Tensor& value) {
    return register_parameter(name, value);
  }
};

// Returns whole numbers of a rank, whose mean float32 represents exactly.
at::Tensor numbers(int64_t count, int rank, at::ScalarType type = at::kFloat) {
  return (at::arange(count, at::kFloat) * (rank + 1) + rank).to(type);
}

TEST(Gradients, SparseOnesAreAveragedAsDense) {
  comm::local::run(2, [](Group group) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
    DataParallel ddp(*table, group);
    for (int step = 0; step < 3; ++step) {
      table->zero_grad(true);
      {
        const auto guard = ddp.no_sync();
        table->forward(torch::tensor({0}, torch::kLong)).sum().backward();
      }
      table->forward(torch::tensor({1 + group.rank(), 3, 3}, torch::kLong)).sum().backward();
      ddp.finish_backward();
      const auto expected = at::tensor({1.0f, 0.5f, 0.5f, 2.0f}).unsqueeze(1).expand({4, 2});
      EXPECT_TRUE(table->weight.grad().equal(expected)) << table->weight.grad();
    }
  });
}

// Follows PyTorch's layout contract for gradients, so an optimizer that traverses memory needs no
// copy.
TEST(Gradients, LieInTheirBucketsAsTheirParameters) {
  comm::local::run(2, [](Group group) {
    Holder module;
    const auto rank = group.rank();
    const auto plain = module.add("plain", at::zeros({4, 3}));
    const auto last =
        module.add("last", at::zeros({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    const auto gaps = module.add("gaps", at::zeros({4, 6}).slice(1, 0, 6, 2));
    DataParallel ddp(module, group);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad(true);
      at::Tensor loss = at::zeros({});
      for (const auto& p : module.parameters()) {
        loss = loss + (p * numbers(p.numel(), rank).view(p.sizes())).sum();
      }
      loss.backward();
      ddp.finish_backward();
      for (const auto& p : module.parameters()) {
        const auto sum = numbers(p.numel(), 0) + numbers(p.numel(), 1);
        EXPECT_TRUE(p.grad().equal((sum / 2).view(p.sizes()))) << p.grad();
      }
      EXPECT_TRUE(last.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_TRUE(plain.grad().is_contiguous());
      EXPECT_TRUE(gaps.grad().is_contiguous()) << "there are none in a bucket";
      EXPECT_TRUE(last.grad().is_alias_of(plain.grad()));
    }
  });
}

TEST(Gradients, TypesMayBeMixed) {
  comm::local::run(3, [](Group group) {
    Holder module;
    std::vector<at::Tensor> parameters;
    for (const auto& type : {at::kFloat, at::kDouble, at::kBFloat16, at::kFloat, at::kDouble}) {
      const auto name = std::to_string(parameters.size());
      parameters.push_back(module.add(name, at::zeros({5}, type)));
    }
    DataParallel ddp(module, group);
    EXPECT_EQ(ddp.bucket_count(), 3u);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad(true);
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (const auto& p : parameters) {
        loss = loss + (p * numbers(5, group.rank(), p.scalar_type())).sum().to(at::kDouble);
      }
      loss.backward();
      ddp.finish_backward();
      for (const auto& p : parameters) {
        EXPECT_EQ(p.grad().scalar_type(), p.scalar_type());
        EXPECT_TRUE(p.grad().to(at::kFloat).equal(numbers(5, 1))) << p.grad();
      }
    }
  });
}

// Rounded once: sums in bfloat16, which has 8 binary digits, would be off in most places.
TEST(Gradients, HalfPrecisionIsSummedInFloat32) {
  const auto of_rank = [](int r) { return at::sin(at::arange(64) * 0.7 + r).to(at::kBFloat16); };
  auto mean = at::zeros({64});
  for (int r = 0; r < 4; ++r) mean += of_rank(r).to(at::kFloat) / 4;
  comm::local::run(4, [&](Group group) {
    Holder module;
    const auto weight = module.add("weight", at::zeros({64}, at::kBFloat16));
    DataParallel ddp(module, group);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad(true);
      (weight * of_rank(group.rank())).sum().backward();
      ddp.finish_backward();
      EXPECT_TRUE(weight.grad().equal(mean.to(at::kBFloat16)));
    }
  });
}

TEST(Gradients, UseTwiceInAPassIsOneGradient) {
  comm::local::run(2, [](Group group) {
    Holder module;
    const auto weight = module.add("weight", at::ones({3}));
    DataParallel ddp(module, group);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad(true);
      ((weight * weight).sum() + weight.sum() * 2.0 * group.rank()).backward();
      EXPECT_EQ(ddp.launched(), 1u);
      ddp.finish_backward();
      EXPECT_TRUE(weight.grad().eq(3).all().item<bool>());
    }
  });
}

TEST(Gradients, TiedParametersAreAveragedOnce) {
  comm::local::run(2, [](Group group) {
    Holder module;
    const auto weight = module.add("first", at::ones({2}));
    module.add("second", weight);
    DataParallel ddp(module, group);
    EXPECT_THAT(ddp.bucket_order(), testing::ElementsAre("first"));
    ((weight * weight).sum() * (group.rank() + 1.0)).backward();
    ddp.finish_backward();
    EXPECT_TRUE(weight.grad().eq(3).all().item<bool>());
  });
}

// Gradients arrive in another order in the first step. A run that continues with that order has the
// same bits as the run that found it, also with a codec that keeps residuals.
TEST(Gradients, BucketOrderContinuesARun) {
  comm::local::run(2, [](Group group) {
    Holder module;
    std::vector<at::Tensor> parameters;
    for (const char* name : {"a", "b", "c"}) parameters.push_back(module.add(name, at::ones({4})));
    const DataParallelOptions options{.bucket_bytes = 32, .first_bucket_bytes = 32};
    const auto step = [&](DataParallel& ddp, int number) {
      module.zero_grad(true);
      for (const size_t i : {1, 0, 2}) {
        (parameters[i] * (numbers(4, group.rank()) + number)).sum().backward();
      }
      ddp.finish_backward();
    };
    std::vector<std::string> order;
    {
      DataParallel ddp(module, group, options);
      EXPECT_THAT(ddp.bucket_order(), testing::ElementsAre("c", "b", "a"));
      step(ddp, 0);
      order = ddp.bucket_order();
      EXPECT_THAT(order, testing::ElementsAre("b", "a", "c"));
    }
    auto again = options;
    again.bucket_order = order;
    int calls = 0;
    again.hook = [&](const Group& own, const comm::GradientBucket& bucket) {
      ++calls;
      own.all_reduce(bucket.flat, comm::ReduceOp::average);
    };
    DataParallel ddp(module, group, again);
    for (int number = 1; number < 3; ++number) {
      EXPECT_EQ(ddp.bucket_order(), order);
      step(ddp, number);
      EXPECT_TRUE(parameters[2].grad().equal(at::arange(4) * 1.5 + 0.5 + number));
    }
    EXPECT_EQ(calls, 4) << "the hook must not wait for a second step";
  });
}

TEST(Gradients, BucketOrderMustFit) {
  Holder module;
  module.add("a", at::ones({4}));
  EXPECT_ERROR(DataParallel(module, comm::local::alone(), {.bucket_order = {"b"}}),
               ErrorKind::usage,
               "[parallel] bucket_order does not fit the module; got b, expected each parameter "
               "that requires a gradient once, as order() gave them");
}

// The rank whose weight is zero runs a pass, too, as with batch norms over all ranks.
TEST(Gradients, WhatOnlyAnEmptyBatchUsesIsTheSameEverywhere) {
  comm::local::run(2, [](Group group) {
    Holder module;
    const auto both = module.add("both", at::ones({2}));
    const auto one = module.add("one", at::ones({2}));
    DataParallel ddp(module, group, {.find_unused_parameters = true});
    EXPECT_TRUE(ddp.begin_step(group.rank() == 0 ? 1 : 0));
    auto loss = both.sum();
    if (group.rank() == 1) loss = loss + one.sum() * NAN;
    loss.backward();
    ddp.finish_backward();
    EXPECT_TRUE(both.grad().eq(1).all().item<bool>());
    ASSERT_TRUE(one.grad().defined());
    EXPECT_TRUE(one.grad().eq(0).all().item<bool>());
  });
}

TEST(Gradients, WeightsCountPassesUnderNoSync) {
  comm::local::run(2, [](Group group) {
    Holder module;
    const auto weight = module.add("weight", at::ones({2}));
    DataParallel ddp(module, group);
    EXPECT_TRUE(ddp.begin_step(group.rank() == 0 ? 1 : 3));
    {
      const auto guard = ddp.no_sync();
      (weight.sum() * 4).backward();
    }
    (weight.sum() * 8 * group.rank()).backward();
    ddp.finish_backward();
    EXPECT_TRUE(weight.grad().eq(10).all().item<bool>()) << "(1 * 4 + 3 * 12) / 4";
  });
}

TEST(Gradients, BuffersMayBeMissing) {
  comm::local::run(2, [](Group group) {
    torch::nn::BatchNorm1d module(torch::nn::BatchNormOptions(2).track_running_stats(false));
    DataParallel ddp(*module, group);
    module->forward(torch::ones({3, 2})).sum().backward();
    ddp.finish_backward();
    EXPECT_TRUE(module->bias.grad().eq(3).all().item<bool>());
  });
}

}  // namespace
}  // namespace troika::parallel
