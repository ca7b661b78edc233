// Errors in the middle of a step: every rank gets one, no rank waits for a timeout, and the
// unfinished object cannot be used.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel {
namespace {

using comm::Group;

constexpr const char* kGoesOn =
    "[parallel] data parallelism was used after an error; expected a new DataParallel, made by all "
    "ranks";

struct Weights : torch::nn::Module {
  Weights() {
    first = register_parameter("first", torch::ones({2}));
    second = register_parameter("second", torch::ones({2}));
  }
  at::Tensor first, second;
};

DataParallelOptions two_buckets() {
  return {.bucket_bytes = 1, .first_bucket_bytes = 1};
}

// Runs the body on three ranks. Returns how many of them threw without waiting for a timeout.
int failures(const std::function<void(Group)>& body) {
  std::atomic<int> failed = 0;
  const auto counted = [&](Group group) {
    try {
      body(std::move(group));
    } catch (const Error& error) {
      failed += error.kind() != ErrorKind::timeout;
      throw;
    } catch (...) {
      ++failed;
      throw;
    }
  };
  EXPECT_THROW(comm::local::run(3, counted, {.timeout = std::chrono::minutes(1)}),
               std::runtime_error);
  return failed;
}

TEST(DataParallelFailure, ARankThatDiesInBackwardFailsAll) {
  EXPECT_EQ(failures([](Group group) {
              Weights module;
              DataParallel ddp(module, group, two_buckets());
              for (int step = 0; step < 2; ++step) {
                // The gradient of this parameter arrives after that of the other one.
                const auto early = module.first * 1;
                early.register_hook([&](const at::Tensor&) {
                  if (step == 1 && group.rank() == 1) throw std::runtime_error("out of luck");
                });
                (early.sum() + (early * module.second).sum()).backward();
                ddp.finish_backward();
                module.zero_grad(true);
              }
            }),
            3);
}

TEST(DataParallelFailure, AHookThatThrowsFailsAll) {
  for (const bool before : {true, false}) {
    EXPECT_EQ(failures([before](Group group) {
                Weights module;
                auto options = two_buckets();
                int calls = 0;
                options.hook = [&](const Group& own, const comm::GradientBucket& bucket) {
                  const bool fails = group.rank() == 2 && ++calls == 3;
                  if (before && fails) throw std::runtime_error("out of luck");
                  own.all_reduce(bucket.flat);
                  if (fails) throw std::runtime_error("out of luck");
                };
                DataParallel ddp(module, group, options);
                for (int step = 0; step < 4; ++step) {
                  (module.first * module.second).sum().backward();
                  ddp.finish_backward();
                  module.zero_grad(true);
                }
              }),
              3)
        << before;
  }
}

TEST(DataParallelFailure, NothingGoesOnAfterAnErrorInBackward) {
  Weights module;
  DataParallel ddp(module, comm::local::alone());
  const auto loss = [&] { return (module.first * module.second).sum(); };
  loss().backward();
  EXPECT_THROW(loss().backward(), Error);
  EXPECT_ERROR(loss().backward(), ErrorKind::usage, kGoesOn);
  EXPECT_ERROR(ddp.finish_backward(), ErrorKind::usage, kGoesOn);
  EXPECT_ERROR(ddp.begin_step(1), ErrorKind::usage, kGoesOn);
}

TEST(DataParallelFailure, NothingGoesOnAfterAnErrorInFinish) {
  Weights module;
  DataParallel ddp(module, comm::local::alone());
  (module.first * module.second).sum().backward();
  ddp.finish_backward();
  EXPECT_ERROR(ddp.finish_backward(), ErrorKind::usage,
               "[parallel] parameters got no gradient in this backward pass; got none for first, "
               "second, expected every parameter to take part in the loss (set "
               "find_unused_parameters, or call requires_grad_(false) on unused ones before "
               "DataParallel is made)");
  EXPECT_ERROR(ddp.finish_backward(), ErrorKind::usage, kGoesOn);
}

TEST(DataParallelFailure, NoSyncBelongsInsideAStep) {
  Weights module;
  DataParallel ddp(module, comm::local::alone());
  {
    const auto guard = ddp.no_sync();
    EXPECT_ERROR(ddp.refresh(), ErrorKind::usage,
                 "[parallel] refresh() was called inside no_sync() (it belongs between steps)");
    EXPECT_ERROR(ddp.finish_backward(), ErrorKind::usage,
                 "[parallel] finish_backward() was called inside no_sync() (it ends the step, "
                 "after the last backward pass)");
  }
  (module.first * module.second).sum().backward();
  ddp.finish_backward();  // neither error did any harm
}

TEST(DataParallelFailure, BeginStepComesFirst) {
  Weights module;
  DataParallel ddp(module, comm::local::alone());
  (module.first * module.second).sum().backward();
  EXPECT_ERROR(ddp.begin_step(1), ErrorKind::usage,
               "[parallel] begin_step() was called in the middle of a step; got gradients that "
               "are averaged already, expected begin_step(), then backward, then "
               "finish_backward()");
}

// Hooks that the first object left behind must not write to its buckets.
TEST(DataParallelFailure, NoHookOutlivesItsObject) {
  Weights module;
  const auto loss = [&] { return (module.first * module.second).sum(); };
  at::Tensor retained;
  {
    DataParallel ddp(module, comm::local::alone());
    retained = loss();
    ddp.refresh();
    retained.backward({}, /*retain_graph=*/true);
    ddp.finish_backward();
  }
  module.zero_grad(true);
  retained.backward();
  loss().backward();
  EXPECT_TRUE(module.first.grad().eq(2).all().item<bool>());
}

}  // namespace
}  // namespace troika::parallel
