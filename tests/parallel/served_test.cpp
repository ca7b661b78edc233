// Data parallelism on parameter servers, compared with DataParallel.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "tests/parallel/replica.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/servers/served_parameters.h"

namespace troika::parallel {
namespace {

using comm::Group;

constexpr int kServedSteps = 6;
const optim::OptimizerOptions kNesterov{
    .name = "sgd", .lr = 0.1, .weight_decay = 0.05, .momentum = 0.9, .nesterov = true};

// Lets a test change gradients before a step.
using Change = std::function<void(Replica&, int rank, int step)>;

struct ServedCourse {
  std::vector<at::Tensor> values;
  std::map<std::string, at::Tensor> states;
};

void make_steps(Replica& replica, Exchange& exchange, optim::FlatOptimizer& optimizer,
                const Group& group, const Change& change = {}, int begin = 0) {
  for (int step = begin; step < begin + kServedSteps; ++step) {
    replica.backward(group.rank(), step);
    if (change) change(replica, group.rank(), step);
    optimizer.set_learning_rate(0.1 / (1 + step));  // as a schedule does
    exchange.finish_backward();
    exchange.step(optimizer);
  }
  exchange.synchronize_replicas();
  expect_same_bits_on_all_ranks(group, replica.values());
}

ServedCourse course_of(const Replica& replica, const optim::FlatOptimizer& optimizer) {
  ServedCourse course{replica.values(), {}};
  for (const auto& [name, tensor] : optimizer.state()) course.states[name] = tensor.clone();
  return course;
}

std::unique_ptr<optim::FlatOptimizer> named_optimizer(Replica& replica,
                                                      const optim::OptimizerOptions& options) {
  return optim::make_optimizer(trained_parameters(*replica.module), options);
}

ServedCourse synchronous(const Group& group, const optim::OptimizerOptions& options) {
  Replica replica(options);
  const auto optimizer = named_optimizer(replica, options);
  DataParallel ddp(*replica.module, group);
  make_steps(replica, ddp, *optimizer, group);
  return course_of(replica, *optimizer);
}

ServedCourse served(const Group& group, const optim::OptimizerOptions& options,
                    const layout::ServerExchange& servers = {}, const Change& change = {}) {
  Replica replica(options);
  ServedParameters exchange(*replica.module, group, {.servers = servers, .optimizer = options});
  const auto optimizer = exchange.own_optimizer();
  make_steps(replica, exchange, *optimizer, group, change);
  return course_of(replica, *optimizer);
}

void expect_alike(const ServedCourse& course, const ServedCourse& oracle) {
  expect_near(course.values, oracle.values, 1e-10);
  ASSERT_EQ(course.states.size(), oracle.states.size());
  for (const auto& [name, tensor] : oracle.states) {
    ASSERT_TRUE(course.states.contains(name)) << name;
    const auto& own = course.states.at(name);
    EXPECT_TRUE(at::allclose(own.to(at::kDouble), tensor.to(at::kDouble), 1e-9, 1e-14)) << name;
    EXPECT_EQ(own.scalar_type(), tensor.scalar_type()) << name;
  }
}

TEST(ServedParameters, SequentialStepsAreThoseOfDataParallel) {
  for (const auto& [ranks, servers] : {std::pair(1, 1), {1, 3}, {2, 0}, {4, 3}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} servers", ranks, servers));
    comm::local::run(ranks, [servers = servers](const Group& group) {
      expect_alike(served(group, kAdamW, {.count = servers}), synchronous(group, kAdamW));
    });
  }
  for (const auto& options :
       {kNesterov, optim::OptimizerOptions{.name = "sgd", .weight_decay = 0.1, .momentum = 0},
        optim::OptimizerOptions{.name = "adam", .weight_decay = 0.1},
        optim::OptimizerOptions{.name = "adagrad", .weight_decay = 0.1}}) {
    SCOPED_TRACE(options.name);
    comm::local::run(2, [&](const Group& group) {
      expect_alike(served(group, options), synchronous(group, options));
    });
  }
}

TEST(ServedParameters, CopiesAndLosslessFiltersChangeNothing) {
  const layout::ServerExchange servers{
      .replicas = 1, .push_filters = "cache_keys, zlib", .pull_filters = "zlib"};
  comm::local::run(2, [&](const Group& group) {
    expect_alike(served(group, kAdamW, servers), synchronous(group, kAdamW));
  });
}

TEST(ServedParameters, ParametersWithoutGradientsAreNotStepped) {
  const Change drop = [](Replica& replica, int rank, int step) {
    const auto parameters = replica.module->parameters();
    if (step % 2 == 0) parameters[1].mutable_grad().reset();  // on all ranks
    if (rank == 1) parameters[2].mutable_grad().reset();      // counts as zero
  };
  comm::local::run(2, [&](const Group& group) {
    Replica replica(kAdamW);
    const auto optimizer = named_optimizer(replica, kAdamW);
    for (int step = 0; step < kServedSteps; ++step) {
      replica.backward(group.rank(), step);
      drop(replica, group.rank(), step);
      for (const auto& parameter : replica.module->parameters()) {
        auto& gradient = parameter.mutable_grad();
        const auto count = at::full({1}, gradient.defined() ? 1 : 0, at::kLong);
        const auto sum = gradient.defined() ? gradient.clone() : at::zeros_like(parameter);
        group.all_reduce(count);
        group.all_reduce(sum);
        gradient = count.item<int64_t>() > 0 ? sum / group.size() : at::Tensor();
      }
      optimizer->set_learning_rate(0.1 / (1 + step));
      optimizer->step();
    }
    expect_alike(served(group, kAdamW, {}, drop), course_of(replica, *optimizer));
  });
}

TEST(ServedParameters, HaveRatesAndWeightDecaysOfTheirOwn) {
  comm::local::run(2, [](const Group& group) {
    const auto options_of = [](const optim::Parameter& parameter) {
      auto options = kAdamW;
      if (parameter.tensor.dim() > 1) return options;
      options.weight_decay = 0;
      options.lr *= 0.5;
      return options;
    };
    Replica replica(kAdamW);
    ServedParameters exchange(*replica.module, group,
                              {.optimizer = kAdamW, .optimizer_of = options_of});
    const auto optimizer = exchange.own_optimizer();
    make_steps(replica, exchange, *optimizer, group);
    // Each parameter with its own optimizer.
    Replica other(kAdamW);
    DataParallel ddp(*other.module, group);
    std::vector<std::unique_ptr<optim::FlatOptimizer>> optimizers;
    for (const auto& parameter : trained_parameters(*other.module)) {
      optimizers.push_back(optim::make_optimizer({parameter}, options_of(parameter)));
    }
    for (int step = 0; step < kServedSteps; ++step) {
      other.backward(group.rank(), step);
      ddp.finish_backward();
      for (const auto& one : optimizers) {
        const bool is_vector = one->parameters().list()[0].tensor.dim() <= 1;
        one->set_learning_rate(0.1 / (1 + step) * (is_vector ? 0.5 : 1));
        one->step();
      }
    }
    expect_near(replica.values(), other.values(), 1e-10);
  });
}

TEST(ServedParameters, GradientsHaveWeights) {
  comm::local::run(2, [](const Group& group) {
    const auto train = [&](Replica& replica, Exchange& exchange, optim::FlatOptimizer& optimizer) {
      for (int step = 0; step < kServedSteps; ++step) {
        ASSERT_TRUE(exchange.begin_step(group.rank() == 0 ? 3 : step % 2));
        replica.backward(group.rank(), step);
        exchange.finish_backward();
        exchange.step(optimizer);
      }
      EXPECT_FALSE(exchange.begin_step(0));
      exchange.synchronize_replicas();
    };
    Replica replica(kNesterov), other(kNesterov);
    ServedParameters exchange(*replica.module, group, {.optimizer = kNesterov});
    const auto optimizer = exchange.own_optimizer();
    train(replica, exchange, *optimizer);
    DataParallel ddp(*other.module, group);
    train(other, ddp, *other.optimizer);
    expect_near(replica.values(), other.values(), 1e-10);
  });
}

// Parameters and states that are written on rank 0 reach the servers, and training goes on with
// them.
TEST(ServedParameters, SpreadWhatIsWritten) {
  comm::local::run(2, [](const Group& group) {
    const auto oracle = [&] {
      Replica replica(kAdamW);
      const auto optimizer = named_optimizer(replica, kAdamW);
      DataParallel ddp(*replica.module, group);
      make_steps(replica, ddp, *optimizer, group);
      make_steps(replica, ddp, *optimizer, group, {}, kServedSteps);
      return course_of(replica, *optimizer);
    }();
    const auto half = synchronous(group, kAdamW);
    Replica replica(kAdamW);
    ServedParameters exchange(*replica.module, group, {.optimizer = kAdamW});
    const auto optimizer = exchange.own_optimizer();
    for (size_t i = 0; i < half.values.size(); ++i) replica.assign(i, half.values[i]);
    optim::NamedTensors states;
    for (const auto& [name, tensor] : half.states) states.emplace_back(name, tensor);
    optimizer->load_state(states);
    exchange.spread_parameters();
    make_steps(replica, exchange, *optimizer, group, {}, kServedSteps);
    expect_alike(course_of(replica, *optimizer), oracle);
  });
}

// With gradients that do not depend on the parameters, the result does not depend on the order.
TEST(ServedParameters, AllConsistenciesApplyAllGradients) {
  const optim::OptimizerOptions sgd{.name = "sgd", .lr = 0.1, .momentum = 0};
  const Change constant = [](Replica& replica, int rank, int step) {
    for (const auto& parameter : replica.module->parameters()) {
      parameter.grad().fill_(rank + 0.5 * step);
    }
  };
  auto oracle = Replica(sgd).values();
  for (int step = 0; step < kServedSteps; ++step) {
    for (auto& value : oracle) value -= 0.1 / (1 + step) * (1 + 0.5 * step);  // the mean of 3 ranks
  }
  comm::local::run(3, [&](const Group& group) {
    for (const char* consistency : {"sequential", "bounded", "eventual"}) {
      const int delay = consistency == std::string("bounded") ? 2 : 0;
      const auto course =
          served(group, sgd, {.consistency = consistency, .delay = delay}, constant);
      expect_near(course.values, oracle, 1e-10);
    }
  });
}

TEST(ServedParameters, ReportHowFarRanksAreApart) {
  comm::local::run(3, [](const Group& group) {
    const auto statistics = [&](const layout::ServerExchange& servers) {
      Replica replica(kAdamW);
      ServedParameters exchange(*replica.module, group, {.servers = servers, .optimizer = kAdamW});
      const auto optimizer = exchange.own_optimizer();
      make_steps(replica, exchange, *optimizer, group);
      const auto taken = exchange.take_statistics();
      EXPECT_TRUE(exchange.take_statistics().empty()) << "no step since";
      return std::map<std::string, double>(taken.begin(), taken.end());
    };
    EXPECT_EQ(statistics({}).at("staleness/max"), 0);
    const auto bounded = statistics({.consistency = "bounded", .delay = 2});
    EXPECT_LE(bounded.at("staleness/max"), 2);
    EXPECT_LE(bounded.at("staleness/p50"), bounded.at("staleness/p95"));
    EXPECT_LE(bounded.at("staleness/p95"), bounded.at("staleness/max"));
  });
}

// Rank 0 may be exactly `delay` steps ahead of a rank that does nothing.
TEST(ServedParameters, RanksMayBeApartByTheDelay) {
  comm::local::run(2, [](const Group& group) {
    Replica replica(kAdamW);
    ServedParameters exchange(
        *replica.module, group,
        {.servers = {.consistency = "bounded", .delay = 2}, .optimizer = kAdamW});
    const auto optimizer = exchange.own_optimizer();
    const auto step = [&](int number) {
      replica.backward(group.rank(), number);
      exchange.step(*optimizer);
    };
    // Rank 1 waits for rank 0's first two steps, which therefore do not wait for rank 1.
    for (int i = 0; i < 2 && group.rank() == 0; ++i) step(i);
    group.barrier();
    for (int i = 0; i < 2 && group.rank() == 1; ++i) step(i);
    exchange.synchronize_replicas();
    expect_same_bits_on_all_ranks(group, replica.values());
    const auto statistics = exchange.take_statistics();
    EXPECT_THAT(statistics, testing::Contains(testing::Pair("staleness/max", 2)));
  });
}

TEST(ServedParameters, AnotherOptimizerIsRefused) {
  const auto group = comm::local::alone();
  Replica replica(kAdamW);
  ServedParameters exchange(*replica.module, group, {.optimizer = kAdamW});
  const auto optimizer = exchange.own_optimizer();
  replica.backward(0, 0);
  EXPECT_ERROR(exchange.step(*replica.optimizer), ErrorKind::usage,
               "[parallel] parameters on servers were stepped by another optimizer; expected that "
               "of own_optimizer()");
  EXPECT_ERROR(ServedParameters(*replica.module, group, {.optimizer = {.name = "lamb"}}),
               ErrorKind::usage,
               "[parallel] an optimizer that parameter servers do not have; got lamb, expected "
               "sgd, adam, adamw or adagrad");
  replica.module->to(torch::kHalf);
  EXPECT_ERROR(ServedParameters(*replica.module, group, {.optimizer = kAdamW}), ErrorKind::usage,
               "[parallel] parameter servers keep parameters in host memory, all float32 or all "
               "float64; 0.weight; got Half on cpu, expected float32 or float64 on the CPU");
}

}  // namespace
}  // namespace troika::parallel
