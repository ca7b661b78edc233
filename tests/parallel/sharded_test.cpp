#include "troika/parallel/sharded.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "tests/parallel/replica.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/nn/sequential.h"

namespace troika::parallel {
namespace {

using comm::Group;

void step(Replica& replica, Exchange& exchange, optim::FlatOptimizer& optimizer, int rank,
          int number) {
  replica.backward(rank, number);
  exchange.finish_backward();
  exchange.step(optimizer);
}

std::unique_ptr<optim::FlatOptimizer> optimizer_of(const Exchange& exchange) {
  return optim::make_optimizer(exchange.parameters(), kAdamW);
}

// The states of whole parameters, from the parts that ranks have; and a rank's parts of them.
state::StateDict whole_states(const Group& group, const state::StateDict& states) {
  state::StateDict result;
  for (const auto& entry : states) {
    const auto& tensor = entry.second;
    const auto whole = at::zeros(entry.box->shape, tensor.options());
    if (entry.box->count() > 0) {
      whole.reshape({-1})
          .narrow(0, entry.box->flat->begin, entry.box->count())
          .copy_(tensor.reshape({-1}));
    }
    const auto op = tensor.dim() > 0 ? comm::ReduceOp::sum : comm::ReduceOp::max;
    group.all_reduce(whole, op);
    result.emplace_back(entry.first, whole);
  }
  return result;
}

state::StateDict parts_of(const optim::FlatOptimizer& optimizer, const state::StateDict& states) {
  auto result = optimizer.state();
  const std::map<std::string, at::Tensor> whole(states.begin(), states.end());
  for (auto& entry : result) {
    const auto& state = whole.at(entry.first);
    entry.second = state.dim() == 0 ? state
                                    : state.reshape({-1})
                                          .narrow(0, entry.box->flat->begin, entry.box->count())
                                          .reshape(entry.second.sizes());
  }
  return result;
}

// 26 numbers on 7 ranks: some ranks have no part of a parameter, and the last rank has none at all.
TEST(Sharded, StatesContinueInAnyOtherStrategy) {
  comm::local::run(7, [](Group group) {
    Replica whole(kAdamW);
    Sharded sharded(*whole.module, group, {.stage = 2});
    const auto optimizer = optimizer_of(sharded);
    for (int i = 0; i < 3; ++i) step(whole, sharded, *optimizer, group.rank(), i);
    const auto saved = whole_states(group, optimizer->state());

    Replica plain(kAdamW);
    for (size_t p = 0; p < whole.values().size(); ++p) plain.assign(p, whole.values()[p]);
    DataParallel ddp(*plain.module, group);
    const auto ddp_optimizer = optimizer_of(ddp);
    ddp_optimizer->load_state(saved);

    Replica later(kAdamW);
    for (size_t p = 0; p < whole.values().size(); ++p) later.assign(p, whole.values()[p]);
    Sharded resumed(*later.module, group, {.stage = 1, .data_parallel = {.bucket_bytes = 64}});
    const auto later_optimizer = optimizer_of(resumed);
    later_optimizer->load_state(parts_of(*later_optimizer, ddp_optimizer->state()));

    for (int i = 3; i < 6; ++i) {
      step(whole, sharded, *optimizer, group.rank(), i);
      step(plain, ddp, *ddp_optimizer, group.rank(), i);
      step(later, resumed, *later_optimizer, group.rank(), i);
    }
    expect_near(plain.values(), whole.values(), 1e-12);
    expect_near(later.values(), whole.values(), 1e-12);
    for (const auto& [name, tensor] : whole_states(group, optimizer->state())) {
      if (name == "0.weight.step") {
        EXPECT_EQ(tensor.item<int64_t>(), 6);
      }
    }
  });
}

TEST(Sharded, ShardsCoverEachParameterOnce) {
  comm::local::run(3, [](Group group) {
    Replica replica(kAdamW);
    Sharded sharded(*replica.module, group, {.stage = 1, .data_parallel = {.bucket_bytes = 64}});
    const auto shards = sharded.parameters();
    const auto values = replica.values();
    ASSERT_EQ(shards.size(), values.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      const auto& box = *shards[i].box;
      EXPECT_EQ(box.name, shards[i].name);
      EXPECT_EQ(at::IntArrayRef(box.shape), values[i].sizes());
      EXPECT_EQ(shards[i].tensor.dim(), values[i].dim());
      EXPECT_TRUE(shards[i].tensor.flatten().equal(
          values[i].flatten().narrow(0, box.flat->begin, box.count())));
      const auto covered = torch::zeros({values[i].numel()});
      covered.narrow(0, box.flat->begin, box.count()).add_(1);
      group.all_reduce(covered);
      EXPECT_TRUE(covered.eq(1).all().item<bool>()) << box.name;
    }
  });
}

// A ring moves 2 (d - 1) / d of the bytes of the gradients (Rajbhandari et al., section 7).
TEST(Sharded, MovesTheBytesOfAnAllReduce) {
  for (const int ranks : {2, 4}) {
    for (const int stage : {1, 2}) {
      comm::local::run(ranks, [&](Group group) {
        torch::nn::Linear layer(128, 64);
        Sharded sharded(*layer, group, {.stage = stage, .data_parallel = {.bucket_bytes = 8192}});
        const auto optimizer = optim::make_optimizer(sharded.parameters(), kAdamW);
        const auto bytes = [&](const auto& body) {
          const auto before = sharded.counters().bytes;
          body();
          return sharded.counters().bytes - before;
        };
        const uint64_t once = 4 * (128 * 64 + 64) * (ranks - 1) / ranks;
        EXPECT_EQ(bytes([&] {
                    layer->forward(torch::ones({2, 128})).sum().backward();
                    sharded.finish_backward();
                  }),
                  once);
        EXPECT_EQ(bytes([&] { sharded.step(*optimizer); }), once);
      });
    }
  }
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::map<const void*, int64_t> storages;
  for (const auto& tensor : tensors) {
    if (tensor.defined()) storages[tensor.storage().data()] = tensor.storage().nbytes();
  }
  int64_t sum = 0;
  for (const auto& [data, bytes] : storages) sum += bytes;
  return sum;
}

// Returns the tensors that a rank's optimizer steps: weights, gradients and states.
std::vector<at::Tensor> stepped(const Sharded& sharded, const optim::FlatOptimizer& optimizer) {
  std::vector<at::Tensor> result;
  for (const auto& shard : sharded.parameters()) {
    result.insert(result.end(), {shard.tensor, shard.tensor.grad()});
  }
  for (const auto& [name, state] : optimizer.state()) {
    if (state.dim() > 0) result.push_back(state);
  }
  return result;
}

// Rajbhandari et al., section 3, with 4 bytes a parameter and a gradient and 8 of states.
TEST(Sharded, HoldsWhatThePaperSays) {
  for (const int ranks : {2, 4}) {
    for (const int stage : {1, 2}) {
      comm::local::run(ranks, [&](Group group) {
        torch::nn::Sequential net(torch::nn::Linear(100, 130), torch::nn::Linear(130, 100));
        const double psi = 100 * 130 * 2 + 130 + 100;
        Sharded sharded(*net, group, {.stage = stage, .data_parallel = {.bucket_bytes = 20000}});
        const auto optimizer = optim::make_optimizer(sharded.parameters(), kAdamW);
        for (int i = 0; i < 2; ++i) {
          net->forward(torch::ones({2, 100})).sum().backward();
          sharded.finish_backward();
          auto held = stepped(sharded, *optimizer);
          for (const auto& parameter : net->parameters()) {
            held.insert(held.end(), {parameter, parameter.grad()});
          }
          const double expected =
              stage == 1 ? 8 * psi + 8 * psi / ranks : 4 * psi + 12 * psi / ranks;
          EXPECT_NEAR(bytes_of(held), expected, 0.02 * expected) << stage << " " << ranks;
          sharded.step(*optimizer);
        }
      });
    }
  }
}

std::shared_ptr<nn::Model> three_blocks() {
  return nn::from_sequential(torch::nn::Sequential(
      torch::nn::Linear(64, 64), torch::nn::Linear(64, 64), torch::nn::Linear(64, 64)));
}

void make_step(nn::Model& model, Sharded& sharded, optim::FlatOptimizer& optimizer) {
  model.forward(torch::ones({2, 64})).sum().backward();
  sharded.finish_backward();
  sharded.step(optimizer);
}

// Rajbhandari et al., section 7.2.2: gathered for each pass (but the last block, once) and
// averaged.
TEST(Sharded, StageThreeMovesHalfAsMuchAgainAndHoldsAShare) {
  for (const int ranks : {2, 4}) {
    comm::local::run(ranks, [&](Group group) {
      const auto model = three_blocks();
      Sharded sharded(*model, group, {.stage = 3, .keep_elements = 0});
      const auto optimizer = optim::make_optimizer(sharded.parameters(), kAdamW);
      uint64_t before = 0;
      for (int i = 0; i < 2; ++i) {
        before = sharded.counters().bytes;
        make_step(*model, sharded, *optimizer);
      }
      const int64_t block = 64 * 64 + 64;
      EXPECT_EQ(sharded.counters().bytes - before, (3 + 2 + 3) * 4 * block * (ranks - 1) / ranks);
      for (const auto& parameter : model->parameters()) {
        EXPECT_EQ(parameter.storage().nbytes(), 0u);
        EXPECT_FALSE(parameter.grad().defined());
      }
      EXPECT_EQ(bytes_of(stepped(sharded, *optimizer)), 16 * 3 * block / ranks);
    });
  }
}

TEST(Sharded, TheModuleTakesWhatWasWrittenToPieces) {
  // Stage 3 has all parameters after synchronize_replicas() and keeps them, or gathers what was
  // written when asked.
  for (const auto& [stage, all_there] : {std::pair(1, false), {2, false}, {3, false}, {3, true}}) {
    comm::local::run(3, [&, stage = stage, all_there = all_there](Group group) {
      const auto model = three_blocks();
      const auto input = torch::ones({2, 64});
      Sharded sharded(*model, group, {.stage = stage, .keep_elements = 0});
      EXPECT_EQ(sharded.shards_parameters(), stage == 3);
      const auto optimizer = optim::make_optimizer(sharded.parameters(), kAdamW);
      make_step(*model, sharded, *optimizer);
      if (all_there) sharded.synchronize_replicas();
      for (const auto& shard : sharded.parameters()) shard.tensor.detach().fill_(0.5);
      sharded.spread_parameters();
      if (stage == 3 && !all_there) sharded.synchronize_replicas();
      for (const auto& parameter : model->parameters()) {
        EXPECT_TRUE(parameter.eq(0.5).all().item<bool>()) << stage;
      }
      // The optimizer continues from them.
      make_step(*model, sharded, *optimizer);
      sharded.synchronize_replicas();
      EXPECT_NEAR(model->parameters()[0][0][0].item<double>(), 0.48, 0.01);
    });
  }
}

TEST(Sharded, StageThreeStartsWithShardsAlone) {
  comm::local::run(4, [](Group group) {
    const auto model = three_blocks();
    const torch::NoGradGuard no_grad;
    const auto parameters = model->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].fill_(100.0 * group.rank() + static_cast<double>(i));
    }
    Sharded sharded(*model, group, {.stage = 3, .keep_elements = 0});
    for (const auto& parameter : parameters) EXPECT_EQ(parameter.storage().nbytes(), 0u);
    sharded.synchronize_replicas();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(parameters[i].eq(static_cast<double>(i)).all().item<bool>()) << i;
    }
  });
}

// Passes without a graph gather, too. After synchronize_replicas(), a rank may run such passes
// alone.
TEST(Sharded, StageThreeHasAllParametersAfterAgree) {
  comm::local::run(2, [](Group group) {
    const auto model = three_blocks();
    const auto input = torch::ones({2, 64});
    Sharded sharded(*model, group, {.stage = 3, .keep_elements = 0});
    const auto optimizer = optim::make_optimizer(sharded.parameters(), kAdamW);
    for (int i = 0; i < 2; ++i) {
      make_step(*model, sharded, *optimizer);
      const torch::NoGradGuard no_grad;
      const auto together = model->forward(input);
      sharded.synchronize_replicas();
      for (const auto& parameter : model->parameters()) {
        EXPECT_GT(parameter.storage().nbytes(), 0u);
      }
      if (group.rank() == 0) {
        EXPECT_TRUE(model->forward(input).equal(together));
      }
    }
  });
}

// Within a group, the same as stage 3 without groups; between groups, an all-reduce of a rank's
// shard.
TEST(Sharded, GroupsExchangeTheirShardsOfGradientsAlone) {
  static constexpr int kGroup = 2;
  comm::local::run(4, [](Group group) {
    const auto model = three_blocks();
    Sharded sharded(*model, group, {.stage = 3, .group_size = kGroup, .keep_elements = 0});
    EXPECT_EQ(sharded.sharing_group().size(), kGroup);
    const auto optimizer = optim::make_optimizer(sharded.parameters(), kAdamW);
    const int64_t block = 64 * 64 + 64;
    uint64_t before = 0;
    for (int i = 0; i < 2; ++i) {
      before = sharded.counters().bytes;
      make_step(*model, sharded, *optimizer);
    }
    EXPECT_EQ(sharded.counters().bytes - before,
              (3 + 2 + 3) * 4 * block * (kGroup - 1) / kGroup + 3 * 4 * block / kGroup);
    EXPECT_EQ(bytes_of(stepped(sharded, *optimizer)), 16 * 3 * block / kGroup);
  });
}

TEST(Sharded, StageThreeRefusesRanksWithoutData) {
  comm::local::run(2, [](Group group) {
    const auto model = three_blocks();
    Sharded sharded(*model, group, {.stage = 3});
    EXPECT_TRUE(sharded.begin_step(1 + group.rank()));
    EXPECT_ERROR(sharded.begin_step(1 - group.rank()), ErrorKind::usage,
                 "[parallel] in stage 3 all ranks make each pass together; got rank 1 without "
                 "weight, expected some on every rank");
  });
}

TEST(Sharded, RefusesWhatItCannotDo) {
  const auto group = comm::local::alone();
  Replica replica(kAdamW);
  const auto make = [&](const ShardedOptions& options) {
    const Sharded sharded(*replica.module, group, options);
  };
  EXPECT_ERROR(make({.stage = 4}), ErrorKind::usage,
               "[parallel] sharded data parallelism; got stage 4, expected 1, 2 or 3");
  EXPECT_ERROR(make({.data_parallel = {.codec = {.name = "fp16"}}}), ErrorKind::usage,
               "[parallel] sharded data parallelism; got codec fp16, expected none");
  EXPECT_ERROR(make({.stage = 3}), ErrorKind::usage,
               "[parallel] stage 3 gathers parameters block by block; got a module without blocks, "
               "expected a nn::Model (nn::from_sequential() makes one of a torch::nn::Sequential)");
  EXPECT_ERROR(
      make({.group_size = 2}), ErrorKind::usage,
      "[parallel] ranks in each group of sharded data parallelism; got groups of 2 of 1 ranks, "
      "expected a number that divides that of ranks");
  Sharded sharded(*replica.module, group, {});
  EXPECT_ERROR(sharded.load_state({{"x", torch::ones({1})}}), ErrorKind::usage,
               "[parallel] a saved state does not fit; got x (load with the model, strategy and "
               "options it was saved with)");
}

}  // namespace
}  // namespace troika::parallel
