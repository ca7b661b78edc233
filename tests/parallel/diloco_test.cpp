// DiLoCo over a group, compared with one process.
#include "troika/parallel/diloco/diloco.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/parallel/diloco_reference.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/diloco/group_mean.h"
#include "troika/parallel/local_steps.h"
#include "troika/parallel/warm_up.h"

namespace troika::parallel {
namespace {

using comm::Group;

const optim::OptimizerOptions kSgd{.name = "sgd", .lr = 0.1, .momentum = 0};

std::vector<Course> courses() {
  std::vector<Course> result;
  for (const double mixing : {0.0, 0.5}) {
    for (const auto& [inner, fragments, delay] : std::vector<std::tuple<int, int, int>>{
             {1, 1, 0}, {4, 1, 0}, {4, 1, 1}, {4, 2, 0}, {4, 2, 1}, {6, 3, 0}, {6, 3, 1}}) {
      result.push_back(
          {.inner_steps = inner, .fragments = fragments, .delay = delay, .mixing = mixing});
    }
  }
  return result;
}

void step(Replica& replica, Exchange& exchange, int rank, int64_t number) {
  exchange.begin_training();
  replica.backward(rank, static_cast<int>(number));
  exchange.finish_backward();
  exchange.step(*replica.optimizer);
}

std::unique_ptr<DiLoCo> over(const Group& group, Replica& replica, const Course& course,
                             const std::string& codec = "none") {
  return std::make_unique<DiLoCo>(*replica.module,
                                  std::make_unique<GroupMean>(group, codec, course.delay > 0),
                                  course.schedule(), course.outer());
}

std::string text(const Course& course) {
  return fmt::format("H {}, {} fragments, delay {}, mixing {}", course.inner_steps,
                     course.fragments, course.delay, course.mixing);
}

TEST(DiLoCo, IsItsPapersAlgorithm) {
  constexpr int kRanks = 3;
  constexpr int64_t kSteps = 14;
  for (const auto& course : courses()) {
    comm::local::run(kRanks, [&](Group group) {
      SCOPED_TRACE(text(course));
      const auto oracle = reference(course, kRanks, kSteps, group.rank());
      Replica replica(kAdamW);
      const auto exchange = over(group, replica, course);
      for (int64_t i = 0; i < kSteps; ++i) step(replica, *exchange, group.rank(), i);
      expect_near(replica.values(), oracle.own, 1e-10);
      exchange->synchronize_replicas();
      expect_same_bits_on_all_ranks(group, replica.values());
      expect_near(replica.values(), oracle.outer, 1e-10);
      exchange->begin_training();
      expect_near(replica.values(), oracle.own, 1e-10);
    });
  }
}

TEST(DiLoCo, OfOneInnerStepOfSgdWithoutMomentumIsDataParallel) {
  comm::local::run(3, [](Group group) {
    Replica synchronous(kSgd), replica(kSgd);
    DataParallel ddp(*synchronous.module, group);
    const auto exchange = over(group, replica, {.inner_steps = 1, .lr = 1, .momentum = 0});
    for (int64_t i = 0; i < 6; ++i) {
      step(synchronous, ddp, group.rank(), i);
      step(replica, *exchange, group.rank(), i);
    }
    expect_near(replica.values(), synchronous.values(), 1e-12);
  });
}

TEST(DiLoCo, WithOuterRateOneAndNoMomentumIsLocalSgd) {
  comm::local::run(2, [](Group group) {
    Replica one(kAdamW), other(kAdamW);
    LocalSteps plain(*one.module, group, {.period = 4});
    const auto outer = over(group, other, {.lr = 1, .momentum = 0});
    for (int64_t i = 0; i < 8; ++i) {
      step(one, plain, group.rank(), i);
      step(other, *outer, group.rank(), i);
    }
    expect_near(one.values(), other.values(), 1e-12);
  });
}

TEST(DiLoCo, CodecsKeepReplicasEqualAndSaveBytes) {
  comm::local::run(2, [](Group group) {
    const auto oracle = reference({}, 2, 8, group.rank());
    uint64_t exact = 0;
    for (const std::string codec : {"none", "fp16", "bf16", "int8"}) {
      SCOPED_TRACE(codec);
      Replica replica(kAdamW);
      const auto exchange = over(group, replica, {}, codec);
      const auto before = group.counters().bytes;
      for (int64_t i = 0; i < 8; ++i) step(replica, *exchange, group.rank(), i);
      const auto bytes = group.counters().bytes - before;
      exchange->synchronize_replicas();
      expect_same_bits_on_all_ranks(group, replica.values());
      expect_near(replica.values(), oracle.outer, codec == "none" ? 1e-10 : 1e-2);
      if (codec == "none") exact = bytes;
      if (codec.ends_with("16")) {
        EXPECT_EQ(bytes, exact / 4) << "of float64";
      }
    }
  });
}

optim::NamedTensors copied(const optim::NamedTensors& list) {
  optim::NamedTensors result;
  for (const auto& [name, tensor] : list) result.emplace_back(name, tensor.clone());
  return result;
}

// Also between sending and the outer step, and while the outer weights are shown.
TEST(DiLoCo, ContinuesFromItsStateBitForBit) {
  constexpr int64_t kSteps = 13;
  const Course course{.inner_steps = 6, .fragments = 2, .delay = 2, .mixing = 0.5};
  for (const bool shows : {false, true}) {
    for (int64_t saved_after = 0; saved_after < 8; ++saved_after) {
      comm::local::run(2, [&](Group group) {
        SCOPED_TRACE(fmt::format("after {} steps", saved_after));
        Replica whole(kAdamW);
        const auto uninterrupted = over(group, whole, course);
        optim::NamedTensors state, inner;
        std::vector<at::Tensor> values;
        for (int64_t i = 0; i < kSteps; ++i) {
          if (i == saved_after) {
            if (shows) uninterrupted->fetch_states();
            state = copied(uninterrupted->state());
            inner = copied(whole.optimizer->state());
            values = whole.values();
          }
          step(whole, *uninterrupted, group.rank(), i);
        }
        Replica replica(kAdamW);
        for (size_t p = 0; p < values.size(); ++p) replica.assign(p, values[p]);
        const auto resumed = over(group, replica, course);
        replica.optimizer->load_state(inner);
        resumed->load_state(state);
        for (int64_t i = saved_after; i < kSteps; ++i) {
          step(replica, *resumed, group.rank(), i);
        }
        expect_near(replica.values(), whole.values(), 0);
        resumed->make_whole();
        uninterrupted->make_whole();
        expect_near(replica.values(), whole.values(), 0);
      });
    }
  }
}

TEST(DiLoCo, BuffersBecomeTheirMean) {
  comm::local::run(2, [](Group group) {
    torch::nn::BatchNorm1d module(2);
    const auto optimizer = optim::make_optimizer(module->parameters(), kSgd);
    DiLoCo exchange(*module, std::make_unique<GroupMean>(group, "int8", false), {.inner_steps = 2},
                    {});
    for (int i = 0; i < 2; ++i) {
      module->forward(torch::full({3, 2}, 1.0 + 2 * group.rank())).sum().backward();
      exchange.finish_backward();
      exchange.step(*optimizer);
    }
    // Means of ones and of threes after two passes.
    EXPECT_NEAR(module->running_mean[0].item<double>(), (0.19 + 0.57) / 2, 1e-6);
  });
}

TEST(DiLoCo, RefusesWhatItCannotDo) {
  Replica replica(kSgd);
  const auto group = comm::local::alone();
  EXPECT_ERROR(over(group, replica, {.inner_steps = 0}), ErrorKind::usage,
               "[parallel] inner_steps of DiLoCo; got 0, expected a multiple of 1 fragments");
  EXPECT_ERROR(over(group, replica, {.inner_steps = 4, .fragments = 3}), ErrorKind::usage,
               "[parallel] inner_steps of DiLoCo; got 4, expected a multiple of 3 fragments");
  EXPECT_ERROR(over(group, replica, {.inner_steps = 5, .fragments = 5}), ErrorKind::usage,
               "[parallel] fragments of a model; got 5, expected from 1 to the 4 trained "
               "parameters, which are not cut");
  EXPECT_ERROR(over(group, replica, {.inner_steps = 4, .fragments = 2, .delay = 2}),
               ErrorKind::usage,
               "[parallel] delay of DiLoCo; got 2, expected an integer from 0 to 1, below the "
               "interval of outer steps");
  const auto exchange = over(group, replica, {});
  EXPECT_ERROR(exchange->begin_step(1), ErrorKind::usage,
               "[parallel] a weight of a step of DiLoCo; got 1, expected none: replicas make "
               "equally many steps");
  exchange->synchronize_replicas();
  EXPECT_ERROR(exchange->step(*replica.optimizer), ErrorKind::usage,
               "[parallel] a step of the outer weights; got no begin_training() after "
               "synchronize_replicas(), expected begin_training() before the forward pass");
  auto state = exchange->state();
  state.emplace_back("anchor.x", torch::ones({1}));
  EXPECT_ERROR(exchange->load_state(state), ErrorKind::usage,
               "[parallel] a saved state does not fit; got anchor.x (load with the model, strategy "
               "and options it was saved with)");
}

TEST(WarmUp, IsDataParallelAndContinuesFromItsState) {
  constexpr int64_t kWarmUp = 4, kSteps = 9;
  comm::local::run(2, [&](Group group) {
    const auto begin = [&](Replica& replica) {
      return std::make_unique<WarmUp>(*replica.module, group, kWarmUp, DataParallelOptions(),
                                      [&] { return over(group, replica, {.inner_steps = 2}); });
    };
    Replica oracle(kAdamW);
    {
      DataParallel ddp(*oracle.module, group);
      for (int64_t i = 0; i < kWarmUp; ++i) step(oracle, ddp, group.rank(), i);
    }
    const auto after = over(group, oracle, {.inner_steps = 2});
    for (int64_t i = kWarmUp; i < kSteps; ++i) step(oracle, *after, group.rank(), i);
    for (const int64_t saved_after : {2, 5}) {
      Replica replica(kAdamW), resumed(kAdamW);
      const auto exchange = begin(replica), again = begin(resumed);
      for (int64_t i = 0; i < kSteps; ++i) {
        if (i == saved_after) {
          const auto values = replica.values();
          for (size_t p = 0; p < values.size(); ++p) resumed.assign(p, values[p]);
          resumed.optimizer->load_state(copied(replica.optimizer->state()));
          again->load_state(copied(exchange->state()));
        }
        step(replica, *exchange, group.rank(), i);
      }
      for (int64_t i = saved_after; i < kSteps; ++i) step(resumed, *again, group.rank(), i);
      expect_near(replica.values(), oracle.values(), 0);
      expect_near(resumed.values(), oracle.values(), 0);
    }
  });
}

}  // namespace
}  // namespace troika::parallel
