// DiLoCo over a quorum whose members may be lost, compared with one process.
#include "troika/parallel/diloco/quorum_mean.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/parallel/diloco_reference.h"
#include "tests/support/errors.h"
#include "troika/quorum/lighthouse_server.h"

namespace troika::parallel {
namespace {

using quorum::Phase;

struct Loss {
  int rank = -1;
  int64_t round = -1;
};
struct Lost {};

// A replica saw this of the sum of a round.
struct Seen {
  std::vector<int> counted;       // ranks
  std::vector<at::Tensor> sent;   // its own weights when it sent
  std::vector<at::Tensor> outer;  // weights, after the outer step
};
using History = std::map<int64_t, Seen>;

class QuorumDiLoCo : public testing::Test {
 protected:
  static std::string state(const Replica& replica, const DiLoCo& exchange) {
    auto all = replica.values();
    for (const auto& entry : replica.optimizer->state()) all.push_back(entry.second);
    for (const auto& entry : exchange.state()) all.push_back(entry.second);
    std::ostringstream out;
    torch::save(all, out);
    return out.str();
  }
  static void load(const std::string& state, Replica& replica, DiLoCo& exchange) {
    std::vector<at::Tensor> all;
    std::istringstream in(state);
    torch::load(all, in);
    size_t at = 0;
    const size_t parameters = replica.values().size();
    for (size_t p = 0; p < parameters; ++p) replica.assign(p, all.at(at++));
    auto inner = replica.optimizer->state();
    for (auto& entry : inner) entry.second = all.at(at++);
    replica.optimizer->load_state(inner);
    auto own = exchange.state();
    for (auto& entry : own) entry.second = all.at(at++);
    exchange.load_state(own);
  }

  // Makes whole rounds, at least `rounds` and until all replicas are there, or until this replica
  // is lost.
  History train(int rank, int replicas, const Course& course, int64_t rounds,
                const std::string& codec = "none", const Loss& loss = {}) {
    int64_t round = 0;
    const auto lose = [&](Phase phase) {
      if (rank == loss.rank && round == loss.round && phase == Phase::in_sum) throw Lost();
    };
    quorum::Member member({.rank = rank,
                           .lighthouse = {"127.0.0.1", lighthouse_->port()},
                           .secret = secret_,
                           .rules = {.replicas = replicas, .global_batch = 12},
                           .on_phase = lose});
    const auto admission = member.join();
    Replica replica(kAdamW);
    DiLoCo exchange(*replica.module,
                    std::make_unique<QuorumMean>(member, QuorumMeanOptions{.codec = codec}),
                    course.schedule(), course.outer());
    if (!admission.founds) load(admission.state, replica, exchange);
    const int64_t interval = course.inner_steps / course.fragments;
    History history;
    try {
      for (round = admission.step;; ++round) {
        member.begin_step(round, [&] { return state(replica, exchange); });
        Seen seen;
        for (int64_t i = round * interval; i < (round + 1) * interval; ++i) {
          exchange.begin_training();
          replica.backward(rank, static_cast<int>(i));
          exchange.step_by([&] {
            replica.optimizer->step();
            if (i + 1 + course.delay == (round + 1) * interval) seen.sent = replica.values();
          });
        }
        for (const auto& one : member.counted().members) seen.counted.push_back(one.rank);
        exchange.synchronize_replicas();
        seen.outer = replica.values();
        exchange.begin_training();
        history[round] = seen;
        if (round + 1 >= rounds && std::ssize(seen.counted) == replicas) break;
      }
      member.leave(true);
    } catch (const Lost&) {
    }
    return history;
  }

  // Expects that replicas agree on the outer weights after each round, and that these are the outer
  // optimizer's on the mean over the replicas that counted.
  static void expect_outer_steps(const std::vector<std::vector<History>>& replicas,
                                 const Course& course, double tolerance = 1e-10) {
    auto theta = Replica(kAdamW).values();
    const auto fragment_of = fragments_of_parameters(course.fragments);
    std::vector<at::Tensor> momentum;
    for (const auto& t : theta) momentum.push_back(torch::zeros_like(t));
    for (int64_t round = 0;; ++round) {
      std::map<int, const Seen*> saw;
      for (size_t rank = 0; rank < replicas.size(); ++rank) {
        for (const auto& history : replicas[rank]) {
          const auto found = history.find(round);
          if (found != history.end()) saw[static_cast<int>(rank)] = &found->second;
        }
      }
      if (saw.empty()) break;
      SCOPED_TRACE(fmt::format("round {}", round));
      const auto& first = *saw.begin()->second;
      ASSERT_EQ(saw.size(), first.counted.size());
      for (size_t p = 0; p < theta.size(); ++p) {
        if (round % course.fragments != fragment_of[p]) continue;
        auto mean = torch::zeros_like(theta[p]);
        for (const int rank : first.counted) {
          mean += (theta[p] - saw.at(rank)->sent[p]) / static_cast<double>(saw.size());
        }
        momentum[p] = course.momentum * momentum[p] + mean;
        theta[p] = theta[p] - course.lr * (mean + course.momentum * momentum[p]);
      }
      for (const auto& [rank, seen] : saw) expect_near(seen->outer, first.outer, 0);
      expect_near(first.outer, theta, tolerance);
      theta = first.outer;
    }
  }

  std::vector<std::vector<History>> train_all(int count, const Course& course, int64_t rounds,
                                              const std::string& codec = "none",
                                              const Loss& loss = {}) {
    std::vector<std::vector<History>> histories(static_cast<size_t>(count));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        auto& own = histories[static_cast<size_t>(rank)];
        own.push_back(train(rank, count, course, rounds, codec, loss));
        if (rank == loss.rank) own.push_back(train(rank, count, course, rounds, codec));
      });
    }
    threads.clear();
    return histories;
  }

  const net::Secret secret_ = net::Secret::random();
  std::optional<quorum::LighthouseServer> lighthouse_{std::in_place, secret_,
                                                      net::Address{"127.0.0.1", 0}};
};

TEST_F(QuorumDiLoCo, OfAllReplicasIsThatOfAGroup) {
  const Course course{.inner_steps = 4, .fragments = 2, .delay = 1, .mixing = 0.5};
  const auto oracle = reference(course, 3, 12, 0);
  const auto histories = train_all(3, course, 6);
  for (const auto& own : histories) expect_near(own[0].at(5).outer, oracle.outer, 1e-10);
  expect_outer_steps(histories, course);
}

class LostReplica : public QuorumDiLoCo, public testing::WithParamInterface<Course> {};

// The replica is lost while changes are summed, and the others go on with theirs. Another process
// takes its place with the bits of a peer.
TEST_P(LostReplica, CostsItsOwnStepsAlone) {
  const auto histories = train_all(3, GetParam(), 4, "none", {.rank = 1, .round = 1});
  ASSERT_EQ(histories[1].size(), 2U);
  EXPECT_EQ(histories[1][0].size(), 1U);
  EXPECT_EQ(histories[0][0].at(1).counted, (std::vector<int>{0, 2}));
  EXPECT_EQ(histories[0][0].rbegin()->second.counted, (std::vector<int>{0, 1, 2}));
  expect_outer_steps(histories, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    , LostReplica,
    testing::Values(Course{}, Course{.inner_steps = 6, .fragments = 2, .delay = 2, .mixing = 0.5}));

// Partial sums are rounded on their way, but all members unpack the same bytes.
TEST_F(QuorumDiLoCo, CodecsKeepReplicasEqual) {
  for (const std::string codec : {"fp16", "bf16", "int8"}) {
    SCOPED_TRACE(codec);
    lighthouse_.emplace(secret_, net::Address{"127.0.0.1", 0});
    expect_outer_steps(train_all(3, {}, 2, codec), {}, 1e-2);
  }
}

TEST_F(QuorumDiLoCo, RefusesWeightsThatAreNotFinite) {
  quorum::Member member({.lighthouse = {"127.0.0.1", lighthouse_->port()},
                         .secret = secret_,
                         .rules = {.global_batch = 1}});
  ASSERT_TRUE(member.join().founds);
  QuorumMean mean(member, {});
  member.begin_step(0, [] { return ""; });
  EXPECT_ERROR(mean.start({torch::full({2}, INFINITY)}, {}), ErrorKind::failure,
               "[parallel] this replica's weights are not finite; got inf or nan, expected numbers "
               "(the other replicas go on without its steps; trainer.terminate_on_nan=false trains "
               "on)");
}

}  // namespace
}  // namespace troika::parallel
