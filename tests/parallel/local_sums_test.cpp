// Sums inside machines before those of summation servers, compared with the group's all-reduce.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <atomic>

#include "tests/parallel/replica.h"
#include "tests/parallel/spares.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/layout/summation.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/servers/local_sums.h"

namespace troika::parallel {
namespace {

using comm::Group;

constexpr int kSteps = 5;
constexpr int64_t kPartition = 64;  // bytes

// Runs the body on ranks of these machines, which are all this one.
void run_on(const std::vector<int>& machines, const std::function<void(Group)>& body,
            const comm::GroupOptions& options = {}) {
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  comm::local::run_ranks(comm::local::make(static_cast<int>(machines.size()), machines), body,
                         options);
  ::unsetenv("MASTER_ADDR");
}

// Returns the values after some steps. A rank's weight of 0 leaves it out of a step.
std::vector<at::Tensor> train(const Group& group, std::shared_ptr<BucketSums> sums,
                              const optim::OptimizerOptions& optimizer = kAdamW) {
  Replica replica(optimizer);
  DataParallel ddp(*replica.module, group,
                   {.bucket_bytes = 200, .first_bucket_bytes = 200, .sums = std::move(sums)});
  for (int step = 0; step < kSteps; ++step) {
    ddp.begin_step(step == 3 ? group.rank() : 1);
    replica.backward(group.rank(), step);
    ddp.finish_backward();
    ddp.step(*replica.optimizer);
  }
  expect_same_bits_on_all_ranks(group, replica.values());
  return replica.values();
}

TEST(LocalSums, AreOfTheFirstRankOfEachMachine) {
  EXPECT_EQ(first_ranks({0, 0, 1, 1}), (std::vector{0, 2}));
  EXPECT_EQ(first_ranks({2, 0, 1, 0, 2}), (std::vector{0, 1, 2}));
}

// Machines have different numbers of ranks, and their ranks need not be neighbours.
TEST(LocalSums, StepsAreThoseOfAnAllReduce) {
  for (const auto& machines :
       std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 1, 1}, {1, 0, 2, 1, 0}, {0, 0, 0}, {0, 1}}) {
    const auto ranks = static_cast<int>(machines.size());
    for (const int spares : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} spares", ranks, spares));
      const Spares beside(spares, ranks);
      run_on(machines, [&](const Group& group) {
        const auto sums = std::make_shared<LocalSums>(
            group,
            SummationOptions{
                .servers = {.count = spares},
                .sums = {.partition_bytes = kPartition, .links = spares > 0 ? "measured" : ""}},
            beside.role(group.rank()));
        expect_near(train(group, sums), train(group, nullptr), 1e-10);
      });
    }
  }
}

// Bytes of machines' links each way are those of the split for as many ranks as there are machines.
TEST(LocalSums, BytesBetweenMachinesAreThoseOfOneRankEach) {
  constexpr int64_t kCount = 4096, kPiece = 256;
  const double bytes = kCount * sizeof(double);
  const std::vector<int> machines{0, 1, 0, 1, 2, 2};
  for (const int spares : {0, 2}) {
    const Spares beside(spares, 6);
    run_on(machines, [&](const Group& group) {
      LocalSums sums(
          group,
          SummationOptions{.servers = {.count = spares}, .sums = {.partition_bytes = kPiece}},
          beside.role(group.rank()));
      std::vector<Bucket> buckets(1);
      buckets[0].gradient.flat = at::full({kCount}, 1.0 + group.rank(), at::kDouble);
      sums.lay_out(buckets);
      sums.start(buckets[0]);
      sums.finish();
      EXPECT_EQ(buckets[0].gradient.flat[7].item<double>(), 3.5);
      const auto split = layout::split_sums(3, spares);
      const auto servers = static_cast<int64_t>(spares) + 3;
      const auto own = at::zeros({servers}, at::kDouble);
      for (int64_t i = 0; i < servers; ++i) {
        const auto traffic = sums.traffic(static_cast<size_t>(i));
        EXPECT_EQ(traffic.sent_bytes, traffic.received_bytes);
        own[i] = static_cast<double>(traffic.sent_bytes);
      }
      const auto all = at::empty({group.size(), servers}, at::kDouble);
      group.all_gather(all, own.view({1, servers}));
      for (const int64_t rank : {2, 3, 5}) EXPECT_EQ(all[rank].sum().item<double>(), 0) << rank;
      const auto shares = split.shares();
      int64_t machine = 0;
      for (const int64_t rank : {0, 1, 4}) {
        const int64_t beside_it = spares + machine++;
        for (int64_t i = 0; i < servers; ++i) {
          EXPECT_NEAR(all[rank][i].item<double>(), shares[static_cast<size_t>(i)] * bytes, kPiece);
        }
        const double at_home = all[rank][beside_it].item<double>();
        const double link =
            bytes - at_home + all.select(1, beside_it).sum().item<double>() - at_home;
        EXPECT_NEAR(link, bytes + (3 - 2) * split.workers[0] * bytes, kPiece);
      }
    });
  }
}

// All ranks have the same bits, also on a machine with one rank.
TEST(LocalSums, HalvesInsideMachinesTrainAlmostAlike) {
  for (const std::string form : {"fp16", "bf16"}) {
    SCOPED_TRACE(form);
    run_on({0, 0, 1}, [&](const Group& group) {
      const auto sums =
          std::make_shared<LocalSums>(group, SummationOptions{.sums = {.local_sums = form}});
      const auto values = train(group, sums), oracle = train(group, nullptr);
      double far = 0;
      for (size_t i = 0; i < oracle.size(); ++i) {
        far = std::max(far, (values[i] - oracle[i]).abs().max().item<double>());
      }
      EXPECT_LT(far, 0.2);
      EXPECT_GT(far, 1e-8) << "bits were lost";
    });
  }
}

// Momentum before the servers' sums is Nesterov momentum of the optimizer, from the first step on.
TEST(LocalSums, MomentumIsThatOfTheOptimizer) {
  const optim::OptimizerOptions plain{.name = "sgd", .lr = 0.05, .momentum = 0};
  auto nesterov = plain;
  nesterov.momentum = 0.9;
  nesterov.nesterov = true;
  for (const auto& machines : std::vector<std::vector<int>>{{0, 0}, {0, 1, 1}}) {
    run_on(machines, [&](const Group& group) {
      const auto sums = make_summation(group, {.sums = {.partition_bytes = 64, .momentum = 0.9}});
      expect_near(train(group, sums, plain), train(group, nullptr, nesterov), 1e-10);
    });
  }
}

// A parameter that is frozen in a step has no momentum of steps before later, and the others keep
// it.
TEST(LocalSums, MomentumEndsWhereAParameterIsFrozen) {
  comm::local::run(2, [](const Group& group) {
    const auto gradients = [&](double momentum) {
      Replica replica(kAdamW);
      DataParallel ddp(*replica.module, group,
                       {.sums = make_summation(group, {.sums = {.momentum = momentum}})});
      std::vector<std::vector<at::Tensor>> means;  // by step and parameter
      for (const int step : {0, 1, 2}) {
        replica.module->parameters()[0].requires_grad_(step != 1);
        ddp.refresh();
        ddp.begin_step(1);
        replica.backward(group.rank(), step);
        ddp.finish_backward();
        auto& of_step = means.emplace_back();
        for (const auto& parameter : replica.module->parameters()) {
          const bool is_trained = parameter.requires_grad();
          of_step.push_back(is_trained ? parameter.grad().clone() : at::Tensor());
        }
      }
      return means;
    };
    const auto plain = gradients(0);
    std::vector<at::Tensor> wanted{1.5 * plain[2][0]};
    for (size_t i = 1; i < plain[0].size(); ++i) {
      wanted.push_back(1.5 * plain[2][i] + 0.25 * plain[1][i] + 0.125 * plain[0][i]);
    }
    expect_near(gradients(0.5)[2], wanted, 1e-12);
  });
}

TEST(LocalSums, CodecsBetweenMachinesGiveTheSameBitsOnAllRanks) {
  run_on({0, 0, 1, 1}, [](const Group& group) {
    const auto sums = std::make_shared<LocalSums>(
        group, SummationOptions{
                   .coding = {.form = server::SumForm::int8, .block = 8, .error_feedback = true}});
    const auto values = train(group, sums), oracle = train(group, nullptr);
    for (size_t i = 0; i < oracle.size(); ++i) {
      EXPECT_LT((values[i] - oracle[i]).abs().max().item<double>(), 0.2);
    }
  });
}

TEST(LocalSums, AreThereWhereOneMachineOfSeveralHasSeveralRanks) {
  EXPECT_TRUE(has_local_sums({0, 1, 1}, {}));
  EXPECT_TRUE(has_local_sums({0, 1, 1}, {.local_sums = "bf16"}));
  EXPECT_FALSE(has_local_sums({0, 0}, {}));
  EXPECT_FALSE(has_local_sums({0, 1}, {}));
  EXPECT_FALSE(has_local_sums({0, 1, 1}, {.local_sums = "none"}));
  EXPECT_FALSE(has_local_sums({0, 1, 1}, {.asynchronous = true}));
}

// No rank waits for a timeout when one of any machine dies in a backward pass.
TEST(LocalSums, EndWithALostRank) {
  for (const int lost : {0, 3}) {
    std::atomic<int> failed = 0;
    EXPECT_THROW(run_on({0, 0, 1, 1},
                        [&](const Group& group) {
                          try {
                            Replica replica(kAdamW);
                            DataParallel ddp(
                                *replica.module, group,
                                {.bucket_bytes = 200,
                                 .first_bucket_bytes = 200,
                                 .sums = std::make_shared<LocalSums>(group, SummationOptions{})});
                            for (int step = 0; step < 4; ++step) {
                              replica.backward(group.rank(), step);
                              if (step == 1 && group.rank() == lost) {
                                throw std::runtime_error("out of luck");
                              }
                              ddp.finish_backward();
                            }
                          } catch (const Error& error) {
                            failed += error.kind() != ErrorKind::timeout ? 1 : 0;
                            throw;
                          } catch (const std::runtime_error&) {
                            ++failed;
                            throw;
                          }
                        },
                        {.timeout = std::chrono::minutes(1)}),
                 std::runtime_error);
    EXPECT_EQ(failed, 4);
  }
}

}  // namespace
}  // namespace troika::parallel
