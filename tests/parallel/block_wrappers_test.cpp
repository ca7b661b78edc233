// Recomputation and offload in a model whose parameters are sharded.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <optional>

#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/offload.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/sharded.h"

namespace troika::parallel {
namespace {

// A GPT that is wide enough for its activations to be written to files.
std::shared_ptr<nn::Model> small_gpt() {
  auto model = nn::make_model({.name = "gpt",
                               .dropout = 0.2,
                               .vocab_size = 19,
                               .context = 64,
                               .layers = 2,
                               .heads = 2,
                               .width = 64});
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : model->parameters()) {
    const auto numbers = at::sin(at::arange(parameter.numel(), at::kDouble) * 0.7 + ++phase);
    parameter.copy_(numbers.view_as(parameter) * 0.1);
  }
  return model;
}

enum class Part { exchange, recompute, offload };

// Returns the parameters after two steps. The wrappers are added to the model in this order.
std::vector<at::Tensor> train_with(const comm::Group& group, bool shards,
                                   const std::vector<Part>& parts, const std::string& policy) {
  const TemporaryFolder folder;
  const auto model = small_gpt();
  std::unique_ptr<Exchange> exchange;
  nn::WrapperGuard recomputing, offloading;
  for (const Part part : parts) {
    if (part == Part::recompute) {
      recomputing = nn::recompute(*model, nn::recompute_plan(policy, model->blocks().size()));
    } else if (part == Part::offload) {
      offloading = nn::offload(*model, std::make_shared<nn::ActivationOffload>(folder.path()));
    } else if (shards) {
      exchange =
          std::make_unique<Sharded>(*model, group, ShardedOptions{.stage = 3, .keep_elements = 0});
    } else {
      exchange = std::make_unique<DataParallel>(*model, group);
    }
  }
  const auto optimizer = optim::make_optimizer(exchange->parameters(), {.name = "adamw"});
  for (int step = 0; step < 2; ++step) {
    const int64_t first = group.rank() * 4;
    const nn::KeyedDraws draws(
        {static_cast<uint64_t>(step), {first, first + 1, first + 2, first + 3}});
    const auto tokens = (at::arange(4 * 65, at::kLong) * 7 + step + 31 * first).view({4, 65}) % 19;
    const auto logits = model->forward(tokens.slice(1, 0, 64));
    at::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1, 65).flatten()).backward();
    exchange->finish_backward();
    exchange->step(*optimizer);
    model->zero_grad();
  }
  exchange->synchronize_replicas();
  std::vector<at::Tensor> result;
  for (const auto& parameter : model->parameters()) result.push_back(parameter.detach().clone());
  return result;
}

std::vector<std::vector<Part>> orders() {
  std::vector<std::vector<Part>> result;
  for (std::vector<Part> parts :
       {std::vector{Part::exchange, Part::recompute}, std::vector{Part::exchange, Part::offload},
        std::vector{Part::exchange, Part::recompute, Part::offload}}) {
    do {
      result.push_back(parts);
    } while (std::ranges::next_permutation(parts).found);
  }
  return result;
}

TEST(BlockWrappers, EveryCombinationInEveryOrderTrainsTheSame) {
  comm::local::run(2, [](const comm::Group& group) {
    std::vector<at::Tensor> replicated;
    for (const bool shards : {false, true}) {
      const auto expected = train_with(group, shards, {Part::exchange}, "");
      if (!shards) replicated = expected;
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(expected[i].allclose(replicated[i], 1e-10, 1e-12)) << i;
      }
      for (const char* policy : {"full", "sqrt"}) {
        for (const auto& parts : orders()) {
          const auto found = train_with(group, shards, parts, policy);
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(found[i].equal(expected[i])) << i << " " << shards << " " << policy;
          }
        }
      }
    }
  });
}

TEST(BlockWrappers, RecomputationStaysWhereShardingEnds) {
  comm::local::run(2, [](const comm::Group& group) {
    int runs = 0;
    const auto model = std::make_shared<nn::Model>();
    for (const char* name : {"a", "b", "c"}) {
      const auto layer = model->place(name, torch::nn::Linear(3, 3));
      const at::NoGradGuard no_grad;
      layer->weight.fill_(0.1);
      layer->bias.fill_(0.2);
      model->add_block({name, {name}, {}, [&runs, layer](const at::Tensor& x) {
                          ++runs;
                          return layer->forward(x).sigmoid();
                        }});
    }
    const auto recomputed = nn::recompute(*model, nn::recompute_plan("full", 3));
    const auto x = at::ones({2, 3});
    const auto expected = model->forward(x);
    std::optional<Sharded> sharded;
    sharded.emplace(*model, group, ShardedOptions{.stage = 3, .keep_elements = 0});
    const auto from_before = model->forward(x);
    EXPECT_TRUE(from_before.equal(expected));
    sharded->synchronize_replicas();
    sharded.reset();
    runs = 0;
    const auto found = model->forward(x);
    EXPECT_TRUE(found.equal(expected));
    found.sum().backward();
    EXPECT_EQ(runs, 6);
    EXPECT_THROW(from_before.sum().backward(), CheckError) << "its parameters are not gathered";
  });
}

}  // namespace
}  // namespace troika::parallel
