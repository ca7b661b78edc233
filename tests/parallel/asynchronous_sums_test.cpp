// Ranks that do not wait for each other, over servers that keep the parameters.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/parallel/replica.h"
#include "tests/parallel/spares.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/servers/asynchronous_sums.h"

namespace troika::parallel {
namespace {

using comm::Group;

std::unique_ptr<AsynchronousSums> asynchronous(const Group& group, Replica& replica,
                                               const Spares& beside, int spares) {
  return std::make_unique<AsynchronousSums>(
      *replica.module, group,
      std::make_shared<SummationServers>(
          group,
          SummationOptions{.servers = {.count = spares},
                           .sums = {.partition_bytes = 64, .asynchronous = true}},
          beside.role(group.rank())));
}

TEST(AsynchronousSums, OneRankMakesTheStepsOfItsOptimizerBitByBit) {
  for (const int spares : {0, 1}) {
    for (const auto& optimizer :
         {optim::OptimizerOptions{.name = "sgd", .lr = 0.1, .momentum = 0.9}, kAdamW}) {
      const Spares beside(spares, 1);
      comm::local::run(1, [&](const Group& group) {
        Replica replica(optimizer), alone(optimizer);
        const auto sums = asynchronous(group, replica, beside, spares);
        for (int step = 0; step < 6; ++step) {
          replica.backward(0, step);
          sums->finish_backward();
          sums->step(*replica.optimizer);
          alone.backward(0, step);
          alone.optimizer->step();
        }
        sums->synchronize_replicas();
        expect_near(replica.values(), alone.values(), 0);
      });
    }
  }
}

// Ranks make different numbers of steps. Their changes do not depend on the parameters here, so
// that the sum of all changes is known.
TEST(AsynchronousSums, NoChangeIsLostOrCountsTwice) {
  constexpr int kRanks = 3;
  const optim::OptimizerOptions plain{.name = "sgd", .lr = 0.25, .momentum = 0};
  for (const int spares : {0, 2}) {
    const Spares beside(spares, kRanks);
    comm::local::run(kRanks, [&](const Group& group) {
      Replica replica(plain);
      const auto before = replica.values();
      const auto sums = asynchronous(group, replica, beside, spares);
      const int steps = 4 + 3 * group.rank();
      for (int step = 0; step < steps; ++step) {
        for (auto& parameter : replica.module->parameters()) {
          parameter.mutable_grad() = at::full_like(parameter, 1 << group.rank());
        }
        sums->step(*replica.optimizer);
      }
      sums->synchronize_replicas();
      expect_same_bits_on_all_ranks(group, replica.values());
      const double change = 0.25 * (4 * 1 + 7 * 2 + 10 * 4);
      const auto after = replica.values();
      for (size_t i = 0; i < after.size(); ++i) {
        EXPECT_LT((before[i] - change - after[i]).abs().max().item<double>(), 1e-12) << i;
      }
      // All ranks go on with the values that rank 0 assigns.
      if (group.rank() == 0) replica.assign(0, at::full_like(after[0], 5));
      sums->spread_parameters();
      EXPECT_TRUE(replica.values()[0].equal(at::full_like(after[0], 5)));
    });
  }
}

TEST(AsynchronousSums, RanksWithoutSamplesPushNothing) {
  comm::local::run(2, [](const Group& group) {
    Replica replica(kAdamW);
    const auto sums = asynchronous(group, replica, Spares(0, 2), 0);
    EXPECT_EQ(sums->begin_step(group.rank()), group.rank() > 0);
    EXPECT_ERROR(sums->load_state({{"other", at::zeros({1})}}), ErrorKind::usage,
                 "[parallel] a saved state does not fit; got other (load with the model, strategy "
                 "and options "
                 "it was saved with)");
  });
}

}  // namespace
}  // namespace troika::parallel
