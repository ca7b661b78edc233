#include "troika/parallel/replicated.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <optional>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/nn/precision.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel {
namespace {

struct Net : torch::nn::Module {
  explicit Net(bool normalised) {
    hidden = register_module("hidden", torch::nn::Linear(3, 6));
    if (normalised) norm = register_module("norm", torch::nn::BatchNorm1d(6));
    head = register_module("head", torch::nn::Linear(6, 2));
    unused = register_parameter("unused", torch::ones({2}));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          torch::cos(torch::arange(parameter.numel(), torch::kDouble)).view_as(parameter));
    }
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = hidden->forward(input);
    if (norm) x = norm->forward(x);
    return head->forward(x.tanh());
  }
  torch::nn::Linear hidden{nullptr}, head{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor unused;
};

ModuleReplica replica_of(const std::shared_ptr<Net>& net) {
  return {net, [net](const data::Batch& batch) {
            return torch::mse_loss(net->forward(batch.inputs), batch.targets);
          }};
}

std::vector<std::shared_ptr<Net>> make_nets(int count, bool normalised = false) {
  std::vector<std::shared_ptr<Net>> nets;
  for (int i = 0; i < count; ++i) nets.push_back(std::make_shared<Net>(normalised));
  return nets;
}

std::vector<ModuleReplica> replicas_of(const std::vector<std::shared_ptr<Net>>& nets) {
  std::vector<ModuleReplica> replicas;
  for (const auto& net : nets) replicas.push_back(replica_of(net));
  return replicas;
}

at::Tensor samples(int64_t count, int64_t width, double factor) {
  return torch::sin(torch::arange(count * width, torch::kDouble) * factor).view({count, width});
}

TEST(Replicated, IsTheStepOnTheWholeBatch) {
  for (const int64_t batch : {1, 7, 8}) {
    for (const int count : {1, 2, 3}) {
      const auto nets = make_nets(count);
      Replicated replicated(replicas_of(nets));
      const auto alone = std::make_shared<Net>(false);
      const auto inputs = samples(batch, 3, 0.7), targets = samples(batch, 2, 1.9);
      for (const double factor : {1.0, 0.25}) {  // a second pass adds up
        const auto expected = replica_of(alone).loss({inputs, targets});
        (expected * factor).backward();
        const auto loss = replicated.loss({inputs, targets});
        (loss * factor).backward();
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
      }
      for (size_t i = 0; i < alone->parameters().size(); ++i) {
        const auto oracle = alone->parameters()[i].grad(), got = nets[0]->parameters()[i].grad();
        ASSERT_EQ(got.defined(), oracle.defined()) << i;
        if (!oracle.defined()) continue;
        EXPECT_LT((got - oracle).abs().max().item<double>(), 1e-12) << i;
      }
      EXPECT_FALSE(nets[0]->unused.grad().defined());
    }
  }
}

TEST(Replicated, ReplicasShareTheFirstOnesParameters) {
  const auto nets = make_nets(2);
  Replicated replicated(replicas_of(nets));
  const auto inputs = samples(4, 3, 0.7), targets = samples(4, 2, 1.9);
  replicated.loss({inputs, targets});
  EXPECT_EQ(nets[1]->head->weight.data_ptr(), nets[0]->head->weight.data_ptr());
  nets[0]->to(torch::kFloat);
  nets[0]->head->bias.requires_grad_(false);
  replicated.loss({inputs.to(torch::kFloat), targets.to(torch::kFloat)}).backward();
  EXPECT_EQ(nets[1]->head->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(nets[1]->head->weight.data_ptr(), nets[0]->head->weight.data_ptr());
  EXPECT_FALSE(nets[0]->head->bias.grad().defined());
}

TEST(Replicated, BuffersAndModeComeFromTheFirst) {
  const auto nets = make_nets(2, /*normalised=*/true);
  Replicated replicated(replicas_of(nets));
  const auto alone = std::make_shared<Net>(true);
  for (int step = 0; step < 2; ++step) {
    const auto inputs = samples(8, 3, 0.7 + step), targets = samples(8, 2, 1.9);
    replicated.loss({inputs, targets});
    alone->forward(inputs.narrow(0, 0, 4));
  }
  EXPECT_TRUE(nets[0]->norm->running_mean.allclose(alone->norm->running_mean, 1e-12, 1e-12));
  EXPECT_EQ(nets[0]->norm->num_batches_tracked.item<int64_t>(), 2);
  EXPECT_FALSE(nets[1]->norm->running_mean.equal(nets[0]->norm->running_mean));
  nets[0]->eval();
  replicated.loss({samples(4, 3, 0.1), samples(4, 2, 0.1)});
  EXPECT_FALSE(nets[1]->norm->is_training());
  EXPECT_TRUE(nets[1]->norm->running_mean.equal(nets[0]->norm->running_mean));
}

// Over several steps, because each thread has its own cache of cast weights, which must not outlive
// a step.
TEST(Replicated, ComputesUnderAutocastAsOneProcessDoes) {
  const auto precision = nn::parse_precision("bf16-mixed");
  for (const int count : {1, 2, 3}) {
    auto nets = make_nets(count + 1);
    for (const auto& net : nets) net->to(torch::kFloat);
    const auto alone = nets.back();
    nets.pop_back();
    auto replicas = replicas_of(nets);
    std::atomic<int> autocast_backward = 0;
    for (auto& replica : replicas) {
      replica.loss = [&, inner = replica.loss](const data::Batch& batch) {
        const auto loss = inner(batch);
        loss.register_hook([&](const at::Tensor&) {
          autocast_backward += compat::autocast_state(at::kCPU).enabled;
        });
        return loss;
      };
    }
    Replicated replicated(replicas);
    const auto step = [&](const std::function<at::Tensor(const data::Batch&)>& loss_of,
                          const Net& net) {
      for (auto& parameter : net.parameters()) parameter.mutable_grad().reset();
      const at::Tensor loss = [&] {
        const nn::Autocast autocast(precision, at::kCPU);
        return loss_of({samples(6, 3, 0.7).to(at::kFloat), samples(6, 2, 1.9).to(at::kFloat)});
      }();
      loss.backward();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters()) {
        if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
      }
      return loss.item<double>();
    };
    for (int i = 0; i < 8; ++i) {
      const double expected = step(replica_of(alone).loss, *alone);
      const double got =
          step([&](const data::Batch& batch) { return replicated.loss(batch); }, *nets[0]);
      // The shares of a batch are rounded to bfloat16 separately.
      EXPECT_NEAR(got, expected, count == 1 ? 0 : 0.01 * expected) << count << " in step " << i;
    }
    EXPECT_EQ(autocast_backward, 0) << "backward passes are outside of it";
  }
}

TEST(Replicated, StandsInEachRankOfDataParallel) {
  const auto inputs = samples(8, 3, 0.7), targets = samples(8, 2, 1.9);
  const auto alone = std::make_shared<Net>(false);
  alone->unused.requires_grad_(false);
  replica_of(alone).loss({inputs, targets}).backward();
  comm::local::run(2, [&](comm::Group group) {
    const auto nets = make_nets(2);
    nets[0]->unused.requires_grad_(false);
    Replicated replicated(replicas_of(nets));
    DataParallel ddp(*nets[0], group);
    const auto share = [&](const at::Tensor& all) { return all.narrow(0, 4 * group.rank(), 4); };
    replicated.loss({share(inputs), share(targets)}).backward();
    ddp.finish_backward();
    EXPECT_TRUE(nets[0]->head->weight.grad().allclose(alone->head->weight.grad(), 1e-12, 1e-12));
  });
}

TEST(Replicated, ThrowsWhatAReplicaThrewAndGoesOn) {
  const auto nets = make_nets(3);
  auto replicas = replicas_of(nets);
  std::optional<std::string> problem = "replica 1 had enough";
  replicas[1].loss = [&, inner = replicas[1].loss](const data::Batch& batch) {
    if (problem) throw std::runtime_error(*problem);
    return inner(batch);
  };
  Replicated replicated(replicas);
  const auto inputs = samples(6, 3, 0.7), targets = samples(6, 2, 1.9);
  EXPECT_THROW(replicated.loss({inputs, targets}), std::runtime_error);
  problem.reset();
  EXPECT_TRUE(std::isfinite(replicated.loss({inputs, targets}).item<double>()));
}

TEST(Replicated, RefusesReplicasThatDiffer) {
  EXPECT_ERROR(Replicated({}), ErrorKind::usage,
               "[parallel] no replicas; got 0, expected at least one");
  EXPECT_ERROR(Replicated({replica_of(make_nets(1, true)[0]), replica_of(make_nets(1)[0])}),
               ErrorKind::usage,
               "[parallel] replica 1 has other parameters or buffers than replica 0 (make all of "
               "them by the same function)");
}

}  // namespace
}  // namespace troika::parallel
