// The functions of Exchange that training loops call, for DataParallel.
#include "troika/parallel/exchange.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/parallel/replica.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel {
namespace {

using comm::Group;

const optim::OptimizerOptions kAdam{.name = "adam", .lr = 0.02};

// The state has the residuals of a codec and the order of buckets.
TEST(Exchange, DataParallelContinuesFromItsState) {
  comm::local::run(2, [](Group group) {
    const DataParallelOptions options{
        .bucket_bytes = 64, .first_bucket_bytes = 64, .codec = {.name = "topk", .density = 0.3}};
    Replica whole(kAdam);
    DataParallel uninterrupted(*whole.module, group, options);
    const auto step = [&](Replica& replica, Exchange& exchange, int number) {
      replica.backward(group.rank(), number);
      exchange.finish_backward();
      exchange.step(*replica.optimizer);
    };
    EXPECT_TRUE(uninterrupted.state().empty()) << "before the first step, when nothing is settled";
    for (int i = 0; i < 3; ++i) step(whole, uninterrupted, i);
    Replica later(kAdam);
    for (size_t p = 0; p < whole.values().size(); ++p) later.assign(p, whole.values()[p]);
    later.optimizer->load_state(whole.optimizer->state());
    DataParallel resumed(*later.module, group, options);
    resumed.load_state(uninterrupted.state());
    EXPECT_EQ(resumed.bucket_order(), uninterrupted.bucket_order());
    for (int i = 3; i < 6; ++i) {
      step(whole, uninterrupted, i);
      step(later, resumed, i);
      expect_near(later.values(), whole.values(), 0);
    }
  });
}

// With another number of ranks, a rank may have another one's state.
TEST(Exchange, ErrorsOfCodecsAreThoseOfTheRank) {
  comm::local::run(2, [](Group group) {
    const DataParallelOptions options{.codec = {.name = "topk", .density = 0.3}};
    Replica replica(kAdam);
    DataParallel ddp(*replica.module, group, options);
    for (int i = 0; i < 3; ++i) {
      replica.backward(group.rank(), i);
      ddp.finish_backward();
      ddp.step(*replica.optimizer);
    }
    const auto errors_as_of = [&](int rank, int ranks) {
      auto state = ddp.state();
      for (auto& [name, tensor] : state) {
        if (name == "codec_ranks") tensor = torch::tensor({rank, ranks}, torch::kLong);
      }
      Replica later(kAdam);
      DataParallel resumed(*later.module, group, options);
      resumed.load_state(state);
      optim::NamedTensors errors;
      for (const auto& [name, tensor] : resumed.state()) {
        if (name.starts_with("codec.error.")) errors.emplace_back(name, tensor);
      }
      return errors;
    };
    const auto own = errors_as_of(group.rank(), 2), scaled = errors_as_of(group.rank(), 1);
    ASSERT_EQ(own.size(), replica.module->parameters().size());
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(scaled[i].second.equal(2 * own[i].second)) << own[i].first;
    }
    EXPECT_THAT(errors_as_of(1 - group.rank(), 2), testing::IsEmpty());
  });
}

TEST(Exchange, DataParallelRefusesAForeignState) {
  Replica replica(kAdam);
  DataParallel ddp(*replica.module, comm::local::alone());
  const std::string hint = " (load with the model, strategy and options it was saved with)";
  EXPECT_ERROR(ddp.load_state({{"codec.bucket0.error", torch::ones({1})}}), ErrorKind::usage,
               "[parallel] a saved state does not fit; got codec.bucket0.error" + hint);
  EXPECT_ERROR(ddp.load_state({{"bucket_order", torch::tensor({7}, torch::kLong)}}),
               ErrorKind::usage, "[parallel] a saved state does not fit; got bucket_order" + hint);
}

TEST(Exchange, AgreeMakesBuffersEqualWhereStepsDoNot) {
  comm::local::run(2, [](Group group) {
    torch::nn::BatchNorm1d module(2);
    DataParallel ddp(*module, group, {.broadcast_buffers = false});
    module->forward(torch::full({3, 2}, 1.0 + group.rank())).sum().backward();
    ddp.finish_backward();
    ddp.synchronize_replicas();
    EXPECT_NEAR(module->running_mean[0].item<double>(), 0.1, 1e-6);
  });
}

// Accumulates over several passes, as a training loop does, as a sum and as a mean.
TEST(Exchange, PassesUnderNoSyncAddUp) {
  Replica oracle(kAdam);
  oracle.module->zero_grad(true);
  for (const int rank : {0, 1}) {
    for (const int pass : {0, 1, 2}) oracle.add_backward(rank, pass, 0.5);
  }
  oracle.optimizer->step();
  comm::local::run(2, [&](Group group) {
    Replica replica(kAdam);
    DataParallel ddp(*replica.module, group);
    Exchange& exchange = ddp;
    replica.module->zero_grad(true);
    for (const int pass : {0, 1}) {
      const auto guard = exchange.no_sync();
      replica.add_backward(group.rank(), pass);
    }
    replica.add_backward(group.rank(), 2);
    exchange.finish_backward();
    exchange.step(*replica.optimizer);
    expect_near(replica.values(), oracle.values(), 1e-12);
  });
}

}  // namespace
}  // namespace troika::parallel
