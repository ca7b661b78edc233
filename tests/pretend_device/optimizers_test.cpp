// Optimizers and the loss scaler on the pretend device.
#include <gmock/gmock.h>

#include "tests/pretend_device/pretend_device.h"
#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/optim/grad_scaler.h"
#include "troika/optim/master_weights.h"
#include "troika/optim/optimizer.h"

namespace troika::pretend {
namespace {

using optim::OptimizerOptions;

struct Model {
  explicit Model(c10::Device where) {
    for (const int64_t size : {5, 12, 1}) {
      const auto values = at::sin(at::arange(size * 3, at::kFloat)).view({size, 3});
      auto tensor = values.to(where).requires_grad_();
      parameters.push_back({std::to_string(size), tensor, size > 1});
    }
  }
  void make_gradients(int step) {
    for (auto& parameter : parameters) {
      const auto values = at::cos(at::arange(parameter.tensor.numel(), at::kFloat) + step);
      parameter.tensor.mutable_grad() =
          values.view(parameter.tensor.sizes()).to(parameter.tensor.device());
    }
  }
  std::vector<optim::Parameter> parameters;
};

void expect_close(const at::Tensor& own, const at::Tensor& oracle) {
  EXPECT_TRUE(own.cpu().allclose(oracle, 1e-6, 1e-6)) << own.cpu() << oracle;
}

class Methods : public testing::TestWithParam<OptimizerOptions> {};

TEST_P(Methods, StepOnTheDeviceAsOnTheHost) {
  Model host(at::kCPU), own(device(0));
  const auto on_host = optim::make_optimizer(host.parameters, GetParam());
  const auto on_device = optim::make_optimizer(own.parameters, GetParam());
  for (int step = 0; step < 4; ++step) {
    host.make_gradients(step);
    own.make_gradients(step);
    // One that has fallen behind.
    if (step == 1) {
      host.parameters[1].tensor.mutable_grad().reset();
      own.parameters[1].tensor.mutable_grad().reset();
    }
    on_host->step();
    reset_counts();
    on_device->step();
    EXPECT_EQ(counts().host_waits, 0) << "a step waits for nothing";
  }
  for (size_t i = 0; i < host.parameters.size(); ++i) {
    expect_close(own.parameters[i].tensor.detach(), host.parameters[i].tensor.detach());
  }
  const auto states = on_device->state(), expected = on_host->state();
  ASSERT_EQ(states.size(), expected.size());
  for (size_t i = 0; i < states.size(); ++i) {
    EXPECT_EQ(states[i].first, expected[i].first);
    expect_close(states[i].second.to(at::kDouble), expected[i].second.to(at::kDouble));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Methods,
    testing::Values(OptimizerOptions{.name = "sgd", .momentum = 0},
                    OptimizerOptions{.name = "sgd", .weight_decay = 0.1},
                    OptimizerOptions{.name = "sgd", .weight_decay = 0.1, .nesterov = true},
                    OptimizerOptions{.name = "adam", .lr = 0.01, .weight_decay = 0.1},
                    OptimizerOptions{.name = "adamw", .lr = 0.01, .weight_decay = 0.1},
                    OptimizerOptions{.name = "adagrad", .lr = 0.01, .weight_decay = 0.1}),
    [](const auto& info) { return info.param.name + std::to_string(info.index); });

TEST(DeviceOptimizers, OthersAreRefusedWithAHint) {
  EXPECT_ERROR(optim::make_optimizer(Model(device(0)).parameters, {.name = "lamb"}),
               ErrorKind::usage,
               "[optim] lamb steps tensors in host memory; got privateuseone:0, expected cpu "
               "(optim::MasterWeights keeps copies in host memory)");
}

TEST(DeviceOptimizers, StatesComeFromTheHost) {
  Model host(at::kCPU), own(device(0));
  const OptimizerOptions options{.name = "adamw", .lr = 0.01};
  const auto on_host = optim::make_optimizer(host.parameters, options);
  const auto on_device = optim::make_optimizer(own.parameters, options);
  host.make_gradients(0);
  on_host->step();
  on_device->load_state(on_host->state());
  const auto states = on_device->state(), expected = on_host->state();
  for (size_t i = 0; i < states.size(); ++i) {
    EXPECT_TRUE(states[i].second.cpu().equal(expected[i].second)) << states[i].first;
  }
}

TEST(DeviceOptimizers, ScalerSkipsStepsThatOverflowed) {
  Model own(device(0));
  const auto optimizer =
      optim::make_optimizer(own.parameters, OptimizerOptions{.name = "sgd", .momentum = 0});
  optim::GradScaler scaler({.initial_scale = 4});
  const auto before = own.parameters[0].tensor.detach().cpu();
  own.make_gradients(0);
  own.parameters[2].tensor.mutable_grad().fill_(INFINITY);
  reset_counts();
  EXPECT_FALSE(scaler.step(*optimizer));
  EXPECT_EQ(counts().host_waits, 1) << "one look at all gradients";
  scaler.update();
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_TRUE(own.parameters[0].tensor.detach().cpu().equal(before));
  own.make_gradients(0);
  EXPECT_TRUE(scaler.step(*optimizer));
  expect_close(own.parameters[0].tensor.detach(),
               before - 0.1 * at::cos(at::arange(15, at::kFloat)).view({5, 3}) / 2);
}

TEST(DeviceOptimizers, MastersAreWhereTheyAreStepped) {
  const auto half = at::ones({4}, at::TensorOptions().device(device(0)).dtype(at::kHalf));
  EXPECT_EQ(optim::MasterWeights({{"w", half}}, device(0)).list()[0].tensor.device(), device(0));
  EXPECT_TRUE(optim::MasterWeights({{"w", half}}).list()[0].tensor.is_cpu());
}

}  // namespace
}  // namespace troika::pretend
