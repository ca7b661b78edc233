// Gradients averaged over the members of a quorum, compared with one process.
#include "troika/parallel/fault_tolerant.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>
#include <sstream>
#include <thread>

#include "tests/parallel/replica.h"
#include "troika/base/error.h"
#include "troika/quorum/lighthouse_server.h"

namespace troika::parallel {
namespace {

using quorum::Phase;
using quorum::Share;
using testing::HasSubstr;

constexpr int64_t kGlobalBatch = 7;  // shares differ
constexpr int64_t kStepOfLoss = 2;
constexpr int64_t kLeastSteps = 5;

// Some parameters are not used by all samples, and some by none.
struct TwoPathsImpl : torch::nn::Module {
  TwoPathsImpl() {
    odd = register_module("odd", torch::nn::Linear(3, 4));
    even = register_module("even", torch::nn::Linear(3, 4));
    unused = register_module("unused", torch::nn::Linear(2, 2));
    out = register_module("out", torch::nn::Linear(4, 1));
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : parameters()) {
      const auto waves = torch::sin(torch::arange(parameter.numel(), torch::kDouble) + ++phase);
      parameter.copy_(waves.view_as(parameter));
    }
  }
  // The mean loss over these samples.
  at::Tensor loss(const std::vector<int64_t>& samples) {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const int64_t sample : samples) {
      const auto x = torch::sin(torch::arange(3, torch::kDouble) + static_cast<double>(sample));
      const auto hidden = torch::tanh(sample % 2 == 0 ? even(x) : odd(x));
      sum = sum + (out(hidden) - std::cos(static_cast<double>(sample))).pow(2).sum();
    }
    return sum / static_cast<double>(samples.size());
  }

  torch::nn::Linear odd{nullptr}, even{nullptr}, unused{nullptr}, out{nullptr};
};
TORCH_MODULE(TwoPaths);

std::vector<int64_t> samples_of(int64_t step, const std::vector<Share>& shares) {
  std::vector<int64_t> result;
  for (const auto& share : shares) {
    for (int64_t i = 0; i < share.count; ++i) {
      result.push_back(step * kGlobalBatch + share.first + i);
    }
  }
  return result;
}

struct Trained {
  TwoPaths module;
  std::unique_ptr<optim::FlatOptimizer> optimizer =
      optim::make_optimizer(trained_parameters(*module), kAdamW);

  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> result;
    for (const auto& parameter : module->parameters()) result.push_back(parameter.detach().clone());
    return result;
  }
  std::string state() const {
    auto all = values();
    for (const auto& [name, tensor] : optimizer->state()) all.push_back(tensor);
    std::ostringstream out;
    torch::save(all, out);
    return out.str();
  }
  void load(const std::string& state) {
    std::vector<at::Tensor> all;
    std::istringstream in(state);
    torch::load(all, in);
    size_t at = 0;
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module->parameters()) parameter.copy_(all.at(at++));
    auto states = optimizer->state();
    for (auto& entry : states) entry.second = all.at(at++);
    optimizer->load_state(states);
  }
};

// A replica had this after a step.
struct After {
  std::vector<Share> shares;
  std::vector<at::Tensor> values;
};
using History = std::map<int64_t, After>;

struct Loss {
  int rank = -1;
  Phase phase{};
};
struct Lost {};

class FaultTolerantSteps : public testing::Test {
 protected:
  // Returns when the replicas are all there after the least number of steps, or when this one is
  // lost.
  History train(int rank, int replicas, const Loss& loss = {}) {
    int64_t now = 0;
    const auto lose = [&](Phase phase) {
      if (rank == loss.rank && now == kStepOfLoss && phase == loss.phase) throw Lost();
    };
    quorum::Member member({.rank = rank,
                           .lighthouse = {"127.0.0.1", lighthouse_.port()},
                           .secret = secret_,
                           .rules = {.replicas = replicas, .global_batch = kGlobalBatch},
                           .on_phase = lose});
    const auto admission = member.join();
    Trained own;
    if (!admission.founds) own.load(admission.state);
    FaultTolerant exchange(*own.module, member);
    History history;
    try {
      for (now = admission.step;; ++now) {
        const auto share = *member.begin_step(now, [&] { return own.state(); });
        own.module->zero_grad();
        own.module->loss(samples_of(now, {share})).backward();
        exchange.finish_backward();
        exchange.step(*own.optimizer);
        After after{.shares = {}, .values = own.values()};
        for (const auto& one : member.counted().members) after.shares.push_back(one.share);
        history[now] = after;
        const auto count = static_cast<int>(after.shares.size());
        if (now + 1 >= kLeastSteps && count == replicas) break;
      }
      member.leave(true);
    } catch (const Lost&) {
    }
    return history;
  }

  static void expect_one_process(const std::vector<History>& histories) {
    Trained oracle;
    for (int64_t step = 0;; ++step) {
      const After* first = nullptr;
      for (const auto& history : histories) {
        const auto found = history.find(step);
        if (found == history.end()) continue;
        if (!first) first = &found->second;
        expect_near(found->second.values, first->values, 0);
      }
      if (!first) break;
      oracle.module->zero_grad();
      oracle.module->loss(samples_of(step, first->shares)).backward();
      oracle.optimizer->step();
      expect_near(first->values, oracle.values(), 1e-10);
    }
  }

  const net::Secret secret_ = net::Secret::random();
  quorum::LighthouseServer lighthouse_{secret_, {"127.0.0.1", 0}};
};

TEST_F(FaultTolerantSteps, OfAllAreThoseOfOneProcess) {
  constexpr int kCount = 3;
  std::vector<History> histories(kCount);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kCount; ++rank) {
    threads.emplace_back([&, rank] { histories[static_cast<size_t>(rank)] = train(rank, kCount); });
  }
  threads.clear();
  for (const auto& history : histories) EXPECT_EQ(history.size(), 5U);
  expect_one_process(histories);
}

// The joiner continues with the bits of its donor.
TEST_F(FaultTolerantSteps, WithoutALostReplicaAreThoseOnItsPeersSamples) {
  constexpr int kCount = 3;
  std::vector<History> histories(kCount + 1);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kCount; ++rank) {
    threads.emplace_back([&, rank] {
      histories[static_cast<size_t>(rank)] = train(rank, kCount, {0, Phase::in_sum});
      if (rank == 0) histories.back() = train(rank, kCount);
    });
  }
  threads.clear();
  EXPECT_EQ(histories[0].size(), 2U);
  EXPECT_EQ(histories[1].at(kStepOfLoss).shares.size(), 2U);
  EXPECT_GE(histories.back().size(), 1U);
  expect_one_process(histories);
}

TEST_F(FaultTolerantSteps, RefuseGradientsThatAreNotFinite) {
  quorum::Member member({.lighthouse = {"127.0.0.1", lighthouse_.port()},
                         .secret = secret_,
                         .rules = {.global_batch = 1}});
  ASSERT_TRUE(member.join().founds);
  Trained own;
  FaultTolerant exchange(*own.module, member),
      lenient(*own.module, member, {.require_finite = false});
  member.begin_step(0, [] { return ""; });
  (own.module->loss({1}) * std::numeric_limits<double>::infinity()).backward();
  try {
    exchange.finish_backward();
    FAIL() << "gradients that are not finite";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("this replica's gradient of odd.weight is not finite"));
  }
  lenient.finish_backward();
  EXPECT_FALSE(own.module->odd->weight.grad().isfinite().all().item<bool>());
}

// As with DataParallel, the statistics of the lowest rank are those of all.
TEST_F(FaultTolerantSteps, ShareTheBuffersOfTheLowestRank) {
  std::vector<at::Tensor> means(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      quorum::Member member({.rank = rank,
                             .lighthouse = {"127.0.0.1", lighthouse_.port()},
                             .secret = secret_,
                             .rules = {.replicas = 2, .global_batch = 4}});
      member.join();
      torch::nn::BatchNorm1d norm(2);
      FaultTolerant exchange(*norm, member);
      member.begin_step(0, [] { return ""; });
      norm(torch::full({2, 2}, rank + 1.0)).sum().backward();
      exchange.finish_backward();
      means[static_cast<size_t>(rank)] = norm->running_mean.clone();
    });
  }
  threads.clear();
  EXPECT_TRUE(means[0].equal(torch::full({2}, 0.1F))) << means[0];
  EXPECT_TRUE(means[1].equal(means[0])) << means[1];
}

}  // namespace
}  // namespace troika::parallel
