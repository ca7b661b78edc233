#include "troika/parallel/local_steps.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/parallel/replica.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel {
namespace {

using comm::Group;

const optim::OptimizerOptions kSgd{.name = "sgd", .lr = 0.1, .momentum = 0};

void step(Replica& replica, Exchange& exchange, const Group& group, int number) {
  replica.backward(group.rank(), number);
  exchange.finish_backward();
  exchange.step(*replica.optimizer);
}

std::vector<at::Tensor> train(const Group& group, Exchange& exchange, Replica& replica, int steps) {
  for (int i = 0; i < steps; ++i) step(replica, exchange, group, i);
  exchange.synchronize_replicas();
  expect_same_bits_on_all_ranks(group, replica.values());
  return replica.values();
}

TEST(LocalSteps, PeriodOneOfPlainSgdIsDataParallel) {
  comm::local::run(3, [](Group group) {
    Replica synchronous(kSgd);
    DataParallel ddp(*synchronous.module, group);
    const auto oracle = train(group, ddp, synchronous, 6);
    Replica replica(kSgd);
    LocalSteps local(*replica.module, group, {.period = 1});
    expect_near(train(group, local, replica, 6), oracle, 1e-12);
  });
}

TEST(LocalSteps, OneRankIsTheOptimizerAlone) {
  Replica alone(kAdamW);
  for (int i = 0; i < 7; ++i) {
    alone.backward(0, i);
    alone.optimizer->step();
  }
  const auto group = comm::local::alone();
  Replica replica(kAdamW);
  LocalSteps local(*replica.module, group, {.period = 3});
  expect_near(train(group, local, replica, 7), alone.values(), 0);
}

TEST(LocalSteps, MovesTheBytesOfOneAveragingAPeriod) {
  comm::local::run(2, [](Group group) {
    const auto bytes = [&](int period) {
      Replica replica(kSgd);
      LocalSteps local(*replica.module, group, {.period = period});
      const auto before = group.counters().bytes;
      for (int i = 0; i < 12; ++i) step(replica, local, group, i);
      return group.counters().bytes - before;
    };
    const auto every_step = bytes(1);
    EXPECT_GT(every_step, 0u);
    EXPECT_EQ(every_step, 4 * bytes(4));
  });
}

TEST(LocalSteps, MeansAreWeightedByWhatRanksLearnedFrom) {
  // Ranks have 4, 1 and 0 steps of 1, 4 and 0 samples. In rounds of 2 the weights are 2 : 4 : 0 and
  // then 2 : 0 : 0. Rank 1 must not make a second step, which would consist only of momentum and
  // decay.
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int r = 0; r < 2; ++r) replicas.push_back(std::make_unique<Replica>(kAdamW));
  for (int i = 0; i < 4; ++i) {
    for (int r = 0; r < (i < 1 ? 2 : 1); ++r) {
      replicas[r]->backward(r, i);
      replicas[r]->optimizer->step();
    }
    if (i != 1) continue;
    const auto first = replicas[0]->values(), second = replicas[1]->values();
    for (size_t p = 0; p < first.size(); ++p) {
      replicas[0]->assign(p, (first[p] + 2 * second[p]) / 3);
    }
  }
  const auto oracle = replicas[0]->values();
  comm::local::run(3, [&](Group group) {
    Replica replica(kAdamW);
    LocalSteps local(*replica.module, group, {.period = 2});
    const std::vector<int> steps{4, 1, 0};
    const std::vector<double> samples{1, 4, 0};
    int i = 0;
    while (local.begin_step(i < steps[group.rank()] ? samples[group.rank()] : 0)) {
      replica.module->zero_grad(/*set_to_none=*/false);
      if (i < steps[group.rank()]) replica.backward(group.rank(), i);
      local.finish_backward();
      local.step(*replica.optimizer);
      ++i;
    }
    EXPECT_EQ(i, 6) << "one round without data ends it";
    expect_same_bits_on_all_ranks(group, replica.values());
    expect_near(replica.values(), oracle, 1e-12);
    EXPECT_TRUE(local.begin_step(1)) << "of a next epoch";
  });
}

TEST(LocalSteps, BuffersBecomeTheirMeanAndCountersRankZeros) {
  comm::local::run(2, [](Group group) {
    torch::nn::BatchNorm1d module(2);
    const auto optimizer = optim::make_optimizer(module->parameters(), kSgd);
    LocalSteps local(*module, group, {.period = 2});
    for (int i = 0; i < 2; ++i) {
      const auto input = torch::full({3, 2}, 1.0 + 2 * group.rank());
      module->forward(input).sum().backward();
      if (i == 0 && group.rank() == 1) module->forward(input);
      local.finish_backward();
      local.step(*optimizer);
    }
    // Means of ones after two passes: 0.19; of threes after three: 0.813.
    EXPECT_NEAR(module->running_mean[0].item<double>(), (0.19 + 0.813) / 2, 1e-6);
    EXPECT_EQ(module->num_batches_tracked.item<int64_t>(), 2);
  });
}

TEST(LocalSteps, ClipsItsOwnGradients) {
  comm::local::run(2, [](Group group) {
    torch::nn::Linear module(torch::nn::LinearOptions(1, 1).bias(false));
    LocalSteps local(*module, group, {.period = 2});
    (module->weight.sum() * (group.rank() + 3.0)).backward();
    local.finish_backward();
    EXPECT_EQ(local.clip_grad_norm(1), group.rank() + 3.0);
    EXPECT_FLOAT_EQ(module->weight.grad().item<float>(), 1);
  });
}

TEST(LocalSteps, ContinuesFromItsState) {
  comm::local::run(2, [](Group group) {
    Replica whole(kSgd), replica(kSgd);
    LocalSteps uninterrupted(*whole.module, group, {.period = 2});
    LocalSteps resumed(*replica.module, group, {.period = 2});
    for (int i = 0; i < 5; ++i) {
      if (i == 3) {
        const auto values = whole.values();
        for (size_t p = 0; p < values.size(); ++p) replica.assign(p, values[p]);
        resumed.load_state(uninterrupted.state());
      }
      step(whole, uninterrupted, group, i);
      if (i >= 3) step(replica, resumed, group, i);
    }
    expect_near(replica.values(), whole.values(), 0);
  });
}

TEST(LocalSteps, RefusesWhatItCannotDo) {
  Replica replica(kSgd);
  const auto group = comm::local::alone();
  EXPECT_ERROR(LocalSteps(*replica.module, group, {.period = 0}), ErrorKind::usage,
               "[parallel] option period of local steps; got 0, expected an integer >= 1");
  LocalSteps local(*replica.module, group, {.period = 2});
  EXPECT_ERROR(local.begin_step(-1), ErrorKind::usage,
               "[parallel] the weight of a rank's gradient; got -1, expected a number >= 0");
  auto state = local.state();
  state.emplace_back("anchor.x", torch::ones({1}));
  EXPECT_ERROR(local.load_state(state), ErrorKind::usage,
               "[parallel] a saved state does not fit; got anchor.x (load with the model, strategy "
               "and options it was saved with)");
  EXPECT_ERROR(local.load_state({}), ErrorKind::usage,
               "[parallel] a saved state does not fit; got no round (load with the model, strategy "
               "and options it was saved with)");
}

}  // namespace
}  // namespace troika::parallel
