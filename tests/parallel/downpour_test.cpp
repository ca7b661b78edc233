// Downpour SGD, compared with optimizers in one process.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <map>

#include "tests/net/endpoints.h"
#include "tests/parallel/replica.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/servers/downpour.h"
#include "troika/parallel/servers/replica_numbers.h"
#include "troika/server/world.h"

namespace troika::parallel {
namespace {

using comm::Group;

const optim::OptimizerOptions kPlainSgd{.name = "sgd", .lr = 0.1, .momentum = 0};
const optim::OptimizerOptions kAdagrad{.name = "adagrad", .lr = 0.1};
constexpr int kDownpourSteps = 7;

DownpourOptions downpour_options(const optim::OptimizerOptions& optimizer,
                                 const layout::DownpourExchange& downpour, int64_t servers = 0) {
  return {
      .served = {.servers = {.consistency = "eventual", .count = servers}, .optimizer = optimizer},
      .downpour = downpour};
}

double rate_of(int step) {
  return 0.1 / (1 + step);  // as a schedule does
}

using States = std::map<std::string, at::Tensor>;

States states_of(const optim::FlatOptimizer& optimizer) {
  States states;
  for (const auto& [name, tensor] : optimizer.state()) states[name] = tensor.clone();
  return states;
}

// The parameters after each step of one process.
std::vector<std::vector<at::Tensor>> local_course(const optim::OptimizerOptions& options,
                                                  States* states = nullptr) {
  Replica replica(options);
  const auto optimizer = optim::make_optimizer(trained_parameters(*replica.module), options);
  std::vector<std::vector<at::Tensor>> course;
  for (int step = 0; step < kDownpourSteps; ++step) {
    replica.backward(0, step);
    optimizer->set_learning_rate(rate_of(step));
    optimizer->step();
    course.push_back(replica.values());
  }
  if (states) *states = states_of(*optimizer);
  return course;
}

// The same of one replica, and the states after a cut.
std::vector<std::vector<at::Tensor>> downpour_course(const optim::OptimizerOptions& options,
                                                     const layout::DownpourExchange& downpour,
                                                     int64_t servers, States* states = nullptr) {
  std::vector<std::vector<at::Tensor>> course;
  comm::local::run(1, [&](const Group& group) {
    Replica replica(options);
    Downpour exchange(*replica.module, group, downpour_options(options, downpour, servers));
    const auto optimizer = exchange.own_optimizer();
    for (int step = 0; step < kDownpourSteps; ++step) {
      replica.backward(0, step);
      optimizer->set_learning_rate(rate_of(step));
      exchange.finish_backward();
      exchange.step(*optimizer);
      course.push_back(replica.values());
    }
    exchange.synchronize_replicas();
    course.push_back(replica.values());
    if (states) *states = states_of(*optimizer);
  });
  return course;
}

TEST(Downpour, OneReplicaInSynchronousOrderIsTheOptimizer) {
  for (const auto& options : {kPlainSgd, kAdagrad}) {
    for (const int servers : {1, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} servers", options.name, servers));
      States states, oracle_states;
      const auto oracle = local_course(options, &oracle_states);
      const auto course = downpour_course(options, {.overlap = false}, servers, &states);
      for (size_t step = 0; step < oracle.size(); ++step) {
        expect_near(course[step], oracle[step], 0);
      }
      expect_near(course.back(), oracle.back(), 0);
      ASSERT_EQ(states.size(), oracle_states.size());
      for (const auto& [name, tensor] : oracle_states) {
        EXPECT_TRUE(states.at(name).equal(tensor)) << name;
      }
    }
  }
}

// A fetch that was sent before a step gets this step's gradient, so a replica lacks none of its
// own.
TEST(Downpour, OverlappedFetchesLackNoGradientOfTheirReplica) {
  const auto oracle = local_course(kPlainSgd);
  for (const int64_t n_fetch : {1, 2, 3}) {
    const auto course = downpour_course(kPlainSgd, {.n_fetch = n_fetch}, 2);
    for (size_t step = 0; step < oracle.size(); ++step) {
      expect_near(course[step], oracle[step], 1e-13);
    }
    expect_near(course.back(), oracle.back(), 1e-13);
  }
}

// Keeps the gradients of a run whose rate is constant.
struct Pushed {
  std::vector<at::Tensor> begin, sums, end;
};

Pushed push_every(int64_t n_push, int64_t n_fetch, bool overlap) {
  Pushed pushed;
  comm::local::run(1, [&](const Group& group) {
    Replica replica(kPlainSgd);
    pushed.begin = replica.values();
    for (const auto& value : pushed.begin) pushed.sums.push_back(at::zeros_like(value));
    Downpour exchange(
        *replica.module, group,
        downpour_options(
            kPlainSgd,
            {.n_fetch = n_fetch, .n_push = n_push, .local_rate = 0.5, .overlap = overlap}));
    const auto optimizer = exchange.own_optimizer();
    for (int step = 0; step < kDownpourSteps; ++step) {
      replica.backward(0, step);
      const auto parameters = replica.module->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) pushed.sums[i] += parameters[i].grad();
      exchange.step(*optimizer);
    }
    exchange.synchronize_replicas();
    pushed.end = replica.values();
  });
  return pushed;
}

// Whatever the replica did in between: the servers have each gradient once, with the local steps of
// another rate nowhere.
TEST(Downpour, PushesLoseAndDoubleNothing) {
  for (const int64_t n_push : {3, 10}) {
    for (const int64_t n_fetch : {1, 3}) {
      for (const bool overlap : {false, true}) {
        SCOPED_TRACE(fmt::format("n_push {}, n_fetch {}, overlap {}", n_push, n_fetch, overlap));
        const auto pushed = push_every(n_push, n_fetch, overlap);
        std::vector<at::Tensor> expected;
        for (size_t i = 0; i < pushed.begin.size(); ++i) {
          expected.push_back(pushed.begin[i] - 0.1 * pushed.sums[i]);
        }
        expect_near(pushed.end, expected, 1e-13);
      }
    }
  }
}

TEST(Downpour, LocalStepsHaveTheirOwnRate) {
  const auto begin = Replica(kPlainSgd).values();
  Replica oracle(kPlainSgd);
  oracle.optimizer->set_learning_rate(0.1 * 0.25);
  oracle.backward(0, 0);
  oracle.optimizer->step();
  const auto course = downpour_course(kPlainSgd, {.n_fetch = 10, .local_rate = 0.25}, 1);
  expect_near(course.front(), oracle.values(), 1e-13);
  const auto still = downpour_course(kPlainSgd, {.n_fetch = 10, .local_rate = 0}, 1);
  expect_near(still.front(), begin, 0);
  EXPECT_FALSE(still.back().front().equal(begin.front())) << "the servers have made the steps";
}

// The gradients do not depend on the parameters, so the order of pushes matters by rounding only.
TEST(Downpour, ReplicasPushEachGradientOnce) {
  constexpr int kReplicas = 4;
  const auto value = [](int replica, int step) { return 1.0 + replica + 0.25 * step; };
  comm::local::run(kReplicas, [&](const Group& group) {
    Replica replica(kPlainSgd);
    const auto begin = replica.values();
    Downpour exchange(*replica.module, group, downpour_options(kPlainSgd, {.n_push = 2}, 3));
    const auto optimizer = exchange.own_optimizer();
    double sum = 0;
    const int steps = 3 + group.rank();  // replicas need not make equally many
    for (int step = 0; step < steps; ++step) {
      for (auto& parameter : replica.module->parameters()) {
        parameter.mutable_grad() = at::full_like(parameter, value(group.rank(), step));
      }
      exchange.step(*optimizer);
    }
    exchange.synchronize_replicas();
    for (int other = 0; other < kReplicas; ++other) {
      for (int step = 0; step < 3 + other; ++step) sum += value(other, step);
    }
    std::vector<at::Tensor> expected;
    for (const auto& tensor : begin) expected.push_back(tensor - 0.1 * sum);
    expect_near(replica.values(), expected, 1e-12);
    expect_same_bits_on_all_ranks(group, replica.values());
  });
}

struct Quadratic : torch::nn::Module {
  explicit Quadratic(double begin)
      : x(register_parameter("x", at::full({10}, begin, at::kDouble))),
        scales(at::linspace(0.1, 1, 10, at::kDouble)) {}
  // 0.5 sum of scales * (x - target)^2
  at::Tensor loss(double noise) const { return 0.5 * (scales * (x - 3 - noise).square()).sum(); }
  at::Tensor x, scales;
};

TEST(Downpour, FourReplicasMinimizeAQuadratic) {
  comm::local::run(4, [&](const Group& group) {
    Quadratic module(0);
    Downpour exchange(module, group,
                      downpour_options({.name = "sgd", .lr = 0.1, .momentum = 0}, {}));
    const auto optimizer = exchange.own_optimizer();
    for (int step = 0; step < 300; ++step) {
      module.zero_grad();
      module.loss(0).backward();
      exchange.step(*optimizer);
    }
    exchange.synchronize_replicas();
    EXPECT_LT((module.x - 3).abs().max().item<double>(), 1e-3);
  });
}

// The servers' Adagrad, pushes of two steps and fetches of three. The replicas have different
// samples of one problem, whose minimum Newton's method finds.
TEST(Downpour, FourReplicasFitALogisticRegression) {
  constexpr int kSamples = 400;
  const auto index = at::arange(kSamples, at::kDouble).view({-1, 1});
  const auto inputs = (index * at::tensor({0.37, 1.31, 2.17}, at::kDouble)).sin();
  const auto targets =
      (inputs.matmul(at::tensor({1.0, -2.0, 0.5}, at::kDouble)) + (index.view(-1) * 5.3).sin())
          .gt(0)
          .to(at::kDouble);
  const auto loss_of = [&](const at::Tensor& x, const at::Tensor& y, const at::Tensor& w) {
    return at::binary_cross_entropy_with_logits(x.matmul(w), y) + 0.005 * w.square().sum();
  };
  auto minimum = at::zeros({3}, at::kDouble);
  for (int i = 0; i < 20; ++i) {
    const auto p = inputs.matmul(minimum).sigmoid();
    const auto gradient = inputs.t().matmul(p - targets) / kSamples + 0.01 * minimum;
    const auto hessian = inputs.t().matmul(inputs * (p * (1 - p)).view({-1, 1})) / kSamples +
                         0.01 * at::eye(3, at::kDouble);
    minimum = minimum - at::linalg_solve(hessian, gradient);
  }
  const double least = loss_of(inputs, targets, minimum).item<double>();
  comm::local::run(4, [&](const Group& group) {
    torch::nn::Linear module(torch::nn::LinearOptions(3, 1).bias(false));
    module->to(at::kDouble);
    const at::NoGradGuard no_grad;
    module->weight.zero_();
    Downpour exchange(*module, group,
                      downpour_options({.name = "adagrad", .lr = 0.5},
                                       {.n_fetch = 3, .n_push = 2, .local_rate = 0.1}));
    const auto optimizer = exchange.own_optimizer();
    const auto own = at::arange(group.rank(), kSamples, 4, at::kLong);
    const auto x = inputs.index_select(0, own), y = targets.index_select(0, own);
    for (int step = 0; step < 300; ++step) {
      const at::AutoGradMode with_grad(true);
      module->zero_grad();
      loss_of(x, y, module->weight.view(-1)).backward();
      optimizer->set_learning_rate(0.5 / (1 + 0.02 * step));
      exchange.step(*optimizer);
    }
    exchange.synchronize_replicas();
    const double reached = loss_of(inputs, targets, module->weight.view(-1)).item<double>();
    EXPECT_LT(reached - least, 1e-2);
  });
}

// Replica 0 begins alone: until it has made its steps, nobody else is constructed.
TEST(Downpour, OthersBeginAfterTheWarmStart) {
  constexpr int kWarm = 5;
  std::atomic<int> made = 0;
  comm::local::run(3, [&](const Group& group) {
    Replica replica(kPlainSgd);
    const auto begin = replica.values();
    Downpour exchange(*replica.module, group,
                      downpour_options(kPlainSgd, {.warm_start_steps = kWarm}));
    const auto optimizer = exchange.own_optimizer();
    if (group.rank() > 0) {
      EXPECT_GE(made, kWarm - 1);  // counted after the step returns
      EXPECT_FALSE(replica.values().front().equal(begin.front())) << "fetched after the warm start";
    }
    for (int step = 0; step < kWarm; ++step) {
      replica.backward(group.rank(), step);
      exchange.step(*optimizer);
      if (group.rank() == 0) ++made;
    }
    exchange.synchronize_replicas();
    expect_same_bits_on_all_ranks(group, replica.values());
  });
}

TEST(Downpour, ACutEndsTheWarmStart) {
  comm::local::run(2, [&](const Group& group) {
    Replica replica(kPlainSgd);
    Downpour exchange(*replica.module, group,
                      downpour_options(kPlainSgd, {.warm_start_steps = 100}));
    const auto optimizer = exchange.own_optimizer();
    replica.backward(group.rank(), 0);
    exchange.step(*optimizer);
    exchange.synchronize_replicas();
    expect_same_bits_on_all_ranks(group, replica.values());
  });
}

// Two pushes of replica 1 come between the fetch and the push of replica 0.
TEST(Downpour, StalenessCountsPushesOfOthers) {
  comm::local::run(2, [&](const Group& group) {
    Replica replica(kPlainSgd);
    Downpour exchange(*replica.module, group, downpour_options(kPlainSgd, {.overlap = false}));
    const auto optimizer = exchange.own_optimizer();
    const auto make_step = [&] {
      replica.backward(group.rank(), 0);
      exchange.step(*optimizer);
    };
    if (group.rank() == 0) make_step();
    group.barrier();
    if (group.rank() == 1) {
      make_step();
      make_step();
    }
    group.barrier();
    if (group.rank() == 0) make_step();
    exchange.synchronize_replicas();
    // The pushes of replica 0 have 0 and 2, those of replica 1 have 1 and 0.
    const std::vector<std::pair<std::string, double>> expected{
        {"staleness/p50", 0},          {"staleness/p95", 2},
        {"staleness/max", 2},          {"staleness/steps_0", 2},
        {"staleness/steps_1", 1},      {"staleness/steps_2_to_3", 1},
        {"staleness/steps_4_to_7", 0}, {"staleness/steps_8_or_more", 0}};
    EXPECT_EQ(exchange.take_statistics(), expected);
    EXPECT_TRUE(exchange.take_statistics().empty()) << "no push since";
  });
}

// Buffers are those of replica 0; written parameters reach all.
TEST(Downpour, CutsHaveTheBuffersOfTheFirstReplica) {
  comm::local::run(3, [&](const Group& group) {
    torch::nn::Sequential module(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
    Downpour exchange(*module, group, downpour_options(kPlainSgd, {}));
    const auto optimizer = exchange.own_optimizer();
    module->zero_grad();
    module->forward(at::full({4, 2}, 1.0 + group.rank()) + at::arange(8).view({4, 2}))
        .sum()
        .backward();
    const auto own = module->buffers()[0].clone();
    exchange.step(*optimizer);
    exchange.synchronize_replicas();
    expect_same_bits_on_all_ranks(group, module->buffers());
    EXPECT_EQ(module->buffers()[0].equal(own), group.rank() == 0);
    {
      const at::NoGradGuard no_grad;
      for (auto& parameter : module->parameters()) parameter.fill_(group.rank() + 1);
    }
    exchange.spread_parameters();
    for (const auto& parameter : module->parameters())
      EXPECT_TRUE(parameter.eq(1).all().item<bool>());
  });
}

// One rank of the replica that gives is lost before it has given: neither of the others takes it.
TEST(Downpour, AllRanksOfAReplicaDecideByTheTablesOfAllPlaces) {
  constexpr int64_t kCut = 3;
  const std::vector<std::string> places{"place-0.", "place-1."};
  ReplicaNumbers first(0, 2, places[0], places), second(0, 2, places[1], places);
  server::World world({}, {.scheduler = {.tables = {first.spec(), second.spec()}}});
  auto& worker = world.worker(net::soon());
  first.use(worker);
  second.use(worker);
  first.end_giving(kCut, 0, net::soon());
  for (auto* of : {&first, &second}) EXPECT_FALSE(of->has_been_given(kCut, 0, net::soon()));
  second.end_giving(kCut, 0, net::soon());
  for (auto* of : {&first, &second}) EXPECT_TRUE(of->has_been_given(kCut, 0, net::soon()));
  world.leave(net::soon());
}

TEST(Downpour, WhatItCannotDoIsRefused) {
  const auto group = comm::local::alone();
  Replica replica(kAdamW);
  EXPECT_ERROR(Downpour(*replica.module, group, downpour_options(kAdamW, {})), ErrorKind::usage,
               "[parallel] the servers' optimizer of Downpour SGD; got adamw, expected sgd or "
               "adagrad");
  EXPECT_ERROR(Downpour(*replica.module, group, {.served = {.optimizer = kPlainSgd}}),
               ErrorKind::usage,
               "[parallel] the consistency of Downpour SGD; got sequential, expected eventual");
  Downpour exchange(*replica.module, group, downpour_options(kPlainSgd, {}));
  EXPECT_ERROR(exchange.step(*replica.optimizer), ErrorKind::usage,
               "[parallel] parameters on servers were stepped by another optimizer; expected that "
               "of own_optimizer()");
}

}  // namespace
}  // namespace troika::parallel
