// Optimizer steps that do not wait for all means, compared with those that do.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "tests/parallel/replica.h"
#include "tests/parallel/waves.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/nn/sequential.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/servers/summation.h"

namespace troika::parallel {
namespace {

using comm::Group;

constexpr int kLayers = 4;
constexpr int kCrossed = 5;  // steps

// Averages a bucket when it is waited for, and notes which.
class LateSums : public BucketSums {
 public:
  explicit LateSums(const Group& group) : group_(group) {}
  void lay_out(const std::vector<Bucket>& buckets) override { buckets_ = &buckets; }
  void start(const Bucket& bucket) override {
    missing.insert(static_cast<size_t>(bucket.gradient.index));
  }
  void finish() override {
    while (!missing.empty()) finish_any({*missing.begin()});
  }
  size_t finish_any(const std::vector<size_t>& buckets) override {
    if (!missing.contains(buckets.front())) return 0;
    group_.all_reduce((*buckets_)[buckets.front()].gradient.flat, comm::ReduceOp::average).wait();
    missing.erase(buckets.front());
    return 0;
  }
  void drop() override {}
  state::StateDict state() override { return {}; }
  void load_state(const state::StateDict& /*state*/) override {}

  std::set<size_t> missing;

 private:
  Group group_;
  const std::vector<Bucket>* buckets_ = nullptr;
};

// Layers in blocks of their own, which note how many means are missing when they run.
struct Layers {
  explicit Layers(const optim::OptimizerOptions& options) {
    double phase = 0;
    for (int i = 0; i < kLayers; ++i) {
      const auto name = fmt::format("layer{}", i);
      const auto layer = model->place(name, torch::nn::Linear(6, 6));
      model->add_block({name, {name}, {}, [layer, this](const at::Tensor& input) {
                          if (late) missing.push_back(late->missing.size());
                          return layer->forward(input).tanh();
                        }});
    }
    model->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      parameter.copy_(waves(parameter.sizes(), 0.9, phase += 1));
    }
    optimizer = optim::make_optimizer(model->parameters(), options);
  }

  void backward(int rank, int step) {
    model->zero_grad(/*set_to_none=*/true);
    missing.clear();
    const double phase = 10 * rank + 0.37 * step;
    torch::mse_loss(model->forward(waves({5, 6}, 0.7, phase)), waves({5, 6}, 1.3, phase))
        .backward();
  }

  const std::shared_ptr<nn::Model> model = std::make_shared<nn::Model>();
  std::unique_ptr<optim::FlatOptimizer> optimizer;
  const LateSums* late = nullptr;
  std::vector<size_t> missing;
};

std::vector<at::Tensor> values_after(const Group& group, const optim::OptimizerOptions& optimizer,
                                     bool crosses) {
  Layers layers(optimizer);
  const auto sums =
      std::make_shared<SummationServers>(group, SummationOptions{.sums = {.partition_bytes = 64}});
  DataParallel ddp(
      *layers.model, group,
      {.bucket_bytes = 400, .first_bucket_bytes = 100, .sums = sums, .crosses_barrier = crosses});
  for (int step = 0; step < kCrossed; ++step) {
    // One rank has no samples in one step.
    const double weight = step == 3 ? group.rank() : 1;
    ddp.begin_step(weight);
    if (weight > 0) layers.backward(group.rank(), step);
    ddp.finish_backward();
    layers.optimizer->set_learning_rate(optimizer.lr / (1 + step));
    ddp.step(*layers.optimizer);
    if (step == 1) ddp.fetch_states();
  }
  ddp.synchronize_replicas();
  std::vector<at::Tensor> values;
  for (const auto& parameter : layers.model->parameters()) {
    values.push_back(parameter.detach().clone());
  }
  for (const auto& [name, state] : layers.optimizer->state()) values.push_back(state.clone());
  return values;
}

TEST(CrossBarrier, StepsHaveTheBitsOfThoseWithABarrier) {
  for (const optim::OptimizerOptions& optimizer :
       {optim::OptimizerOptions{.name = "sgd", .lr = 0.1, .weight_decay = 0.01, .momentum = 0.9},
        optim::OptimizerOptions{.name = "adagrad", .lr = 0.1}, kAdamW,
        optim::OptimizerOptions{.name = "lamb", .lr = 0.02, .weight_decay = 0.1},
        optim::OptimizerOptions{.name = "lars", .lr = 1, .weight_decay = 0.1}}) {
    SCOPED_TRACE(optimizer.name);
    comm::local::run(optimizer.name == "sgd" ? 3 : 2, [&](const Group& group) {
      const auto crossed = values_after(group, optimizer, true);
      const auto oracle = values_after(group, optimizer, false);
      ASSERT_EQ(crossed.size(), oracle.size());
      for (size_t i = 0; i < oracle.size(); ++i) EXPECT_TRUE(crossed[i].equal(oracle[i])) << i;
    });
  }
}

TEST(CrossBarrier, BlocksWaitForTheirOwnParametersOnly) {
  comm::local::run(2, [](const Group& group) {
    Layers layers(kAdamW);
    const auto sums = std::make_shared<LateSums>(group);
    layers.late = sums.get();
    // A bucket for each layer.
    DataParallel ddp(
        *layers.model, group,
        {.bucket_bytes = 336, .first_bucket_bytes = 336, .sums = sums, .crosses_barrier = true});
    for (int step = 0; step < 3; ++step) {
      layers.backward(group.rank(), step);
      // The first step has a barrier. The last block waits for all.
      const std::vector<size_t> waited{3, 2, 1, 0};
      EXPECT_EQ(layers.missing, step < 2 ? std::vector<size_t>(kLayers) : waited);
      ddp.finish_backward();
      EXPECT_EQ(sums->missing.size(), step == 0 ? 0u : 4u);
      if (step > 0) {
        EXPECT_ERROR(ddp.gradients(), ErrorKind::usage,
                     "[parallel] gradients() in a step that does not wait for all means; expected "
                     "a call of fetch_states() before it, or no crosses_barrier");
      }
      ddp.step(*layers.optimizer);
    }
    EXPECT_ERROR(ddp.state(), ErrorKind::usage,
                 "[parallel] state() in a step that does not wait for all means; expected a call "
                 "of fetch_states() before it, or no crosses_barrier");
    ddp.fetch_states();
    EXPECT_TRUE(sums->missing.empty());
    EXPECT_EQ(ddp.state().size(), 1u);
  });
}

TEST(CrossBarrier, RefusesWhatHasNoBlocksOrServers) {
  comm::local::run(1, [](const Group& group) {
    Layers layers(kAdamW);
    EXPECT_ERROR(DataParallel(*layers.model, group, {.crosses_barrier = true}), ErrorKind::usage,
                 "[parallel] blocks that wait for their own parameters; got no summation servers, "
                 "expected a nn::Model whose gradients summation servers average");
    Replica replica(kAdamW);
    EXPECT_ERROR(DataParallel(*replica.module, group,
                              {.sums = std::make_shared<LateSums>(group), .crosses_barrier = true}),
                 ErrorKind::usage,
                 "[parallel] blocks that wait for their own parameters; got a module without "
                 "blocks, expected a nn::Model whose gradients summation servers average");
  });
}

}  // namespace
}  // namespace troika::parallel
