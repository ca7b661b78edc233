// A user's module with two inputs, given as blocks: with data parallelism, sharding and
// recomputation, a step equals that of the module in one process.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/sharded.h"

namespace troika::parallel {
namespace {

// As in a user's program, without any use of Troika.
struct TwoTowers : torch::nn::Module {
  TwoTowers() {
    register_module("left", left);
    register_module("right", right);
    register_module("mixer", mixer);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    const auto l = torch::tanh(left(a)), r = torch::tanh(right(b));
    return head(torch::relu(mixer(torch::cat({l, r}, 1))) + l);
  }
  torch::nn::Linear left{5, 8}, right{3, 8}, mixer{16, 8}, head{8, 1};
};

// The same as blocks.
std::shared_ptr<nn::Model> as_blocks(const std::shared_ptr<TwoTowers>& net) {
  auto model = std::make_shared<nn::Model>();
  model->place_children(*net);
  model->add_block(
      {"towers",
       {"left", "right"},
       {},
       [net](const nn::Tensors& in) {
         return nn::Tensors{torch::tanh(net->left(in[0])), torch::tanh(net->right(in[1]))};
       },
       {"a", "b"},
       {"l", "r"}});
  model->add_block(
      {"mixer",
       {"mixer"},
       {},
       [net](const nn::Tensors& in) { return torch::relu(net->mixer(torch::cat(in, 1))); },
       {"l", "r"}});
  model->add_block({"head",
                    {"head"},
                    {},
                    [net](const nn::Tensors& in) { return net->head(in[0] + in[1]); },
                    {"x", "l"}});
  return model;
}

std::shared_ptr<TwoTowers> make_net() {
  auto net = std::make_shared<TwoTowers>();
  net->to(at::kDouble);
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(
        at::sin(at::arange(parameter.numel(), at::kDouble) + ++phase).view_as(parameter));
  }
  return net;
}

struct Data {
  at::Tensor a, b, y;
};

// Returns the rows of the 24 samples of step `step` for this rank.
Data data_of(int step, int rank, int ranks) {
  const auto rows =
      at::arange(24, at::kDouble).add(24 * step).slice(0, rank, {}, ranks).unsqueeze(1);
  return {at::sin(rows * at::arange(1, 6)), at::cos(rows * at::arange(1, 4)), at::sin(rows)};
}

constexpr int kOwnSteps = 4;

std::vector<at::Tensor> copies_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

std::vector<at::Tensor> weights_of_one_process() {
  const auto net = make_net();
  std::vector<optim::Parameter> parameters;
  for (const auto& [name, tensor] : nn::trained_parameters(*net)) {
    parameters.push_back({name, tensor});
  }
  const auto optimizer = optim::make_optimizer(parameters, {.name = "adamw"});
  for (int step = 0; step < kOwnSteps; ++step) {
    const auto [a, b, y] = data_of(step, 0, 1);
    torch::mse_loss(net->forward(a, b), y).backward();
    optimizer->step();
    net->zero_grad();
  }
  return copies_of(*net);
}

using MakeExchange = std::function<std::unique_ptr<Exchange>(nn::Model&, const comm::Group&)>;

void expect_weights_of_one_process(const MakeExchange& make, const nn::RecomputePlan& plan) {
  const auto expected = weights_of_one_process();
  comm::local::run(4, [&](const comm::Group& group) {
    const auto model = as_blocks(make_net());
    model->verify();
    const auto exchange = make(*model, group);
    const auto optimizer = optim::make_optimizer(exchange->parameters(), {.name = "adamw"});
    const auto recomputed = nn::recompute(*model, plan);
    for (int step = 0; step < kOwnSteps; ++step) {
      const auto [a, b, y] = data_of(step, group.rank(), group.size());
      torch::mse_loss(nn::only(model->forward({a, b})), y).backward();
      exchange->finish_backward();
      exchange->step(*optimizer);
      model->zero_grad();
    }
    exchange->synchronize_replicas();
    const auto found = copies_of(*model);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(found[i].allclose(expected[i], 1e-10, 1e-12)) << i << " on " << group.rank();
    }
  });
}

std::unique_ptr<Exchange> data_parallel(nn::Model& model, const comm::Group& group) {
  return std::make_unique<DataParallel>(model, group);
}

std::unique_ptr<Exchange> fully_sharded(nn::Model& model, const comm::Group& group) {
  return std::make_unique<Sharded>(model, group, ShardedOptions{.stage = 3, .keep_elements = 0});
}

TEST(OwnBlocks, RunInDataParallel) {
  expect_weights_of_one_process(data_parallel, {});
}

TEST(OwnBlocks, AreSharded) {
  expect_weights_of_one_process(fully_sharded, {});
}

TEST(OwnBlocks, AreRecomputed) {
  for (const auto& plan : {nn::recompute_plan("full", 3), nn::RecomputePlan{{0, 2}},
                           nn::RecomputePlan{{1, 3}}, nn::RecomputePlan{{0, 3, {{0, 1}}}}}) {
    expect_weights_of_one_process(data_parallel, plan);
    expect_weights_of_one_process(fully_sharded, plan);
  }
}

}  // namespace
}  // namespace troika::parallel
