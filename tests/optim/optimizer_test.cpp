#include "troika/optim/optimizer.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"

namespace troika::optim {
namespace {

std::vector<at::Tensor> make_parameters() {
  torch::manual_seed(5);
  return {at::randn({3, 4}, at::kDouble).requires_grad_(),
          at::randn({4}, at::kDouble).requires_grad_()};
}

// Three steps down a function that is not quadratic, so that every option counts.
void descend(const std::vector<at::Tensor>& parameters, torch::optim::Optimizer& optimizer) {
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (parameters[0].sin() * parameters[1].pow(3)).sum().backward();
    optimizer.step();
  }
}

// The optimizer made by name and torch's own leave the same bits.
void expect_same_course(
    const OptimizerOptions& options,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>&
        make_expected) {
  const auto ours = make_parameters(), theirs = make_parameters();
  descend(ours, *make_optimizer(ours, options));
  descend(theirs, *make_expected(theirs));
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(ours[i].equal(theirs[i])) << i;
    EXPECT_FALSE(ours[i].equal(make_parameters()[i])) << i << " has not moved";
  }
}

TEST(Optimizer, SgdIsTorchs) {
  for (const bool nesterov : {false, true}) {
    expect_same_course(
        {.name = "sgd", .lr = 0.05, .weight_decay = 0.01, .momentum = 0.8, .nesterov = nesterov},
        [&](const auto& parameters) {
          return std::make_unique<torch::optim::SGD>(
              parameters,
              torch::optim::SGDOptions(0.05).momentum(0.8).nesterov(nesterov).weight_decay(0.01));
        });
  }
}

TEST(Optimizer, AdamIsTorchs) {
  expect_same_course(
      {.name = "adam", .lr = 0.02, .weight_decay = 0.3, .beta1 = 0.7, .beta2 = 0.9, .eps = 1e-3},
      [](const auto& parameters) {
        return std::make_unique<torch::optim::Adam>(
            parameters,
            torch::optim::AdamOptions(0.02).betas({0.7, 0.9}).eps(1e-3).weight_decay(0.3));
      });
}

TEST(Optimizer, AdamWIsTorchs) {
  expect_same_course(
      {.name = "adamw", .lr = 0.02, .weight_decay = 0.3, .beta1 = 0.7, .beta2 = 0.9, .eps = 1e-3},
      [](const auto& parameters) {
        return std::make_unique<torch::optim::AdamW>(
            parameters,
            torch::optim::AdamWOptions(0.02).betas({0.7, 0.9}).eps(1e-3).weight_decay(0.3));
      });
}

TEST(Optimizer, TheLearningRateCanBeSetForEveryOne) {
  for (const auto& name : optimizer_names()) {
    SCOPED_TRACE(name);
    const auto parameters = make_parameters();
    const auto optimizer = make_optimizer(parameters, {.name = name, .lr = 0.5});
    ASSERT_EQ(optimizer->param_groups().size(), 1u);
    EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.5);
    set_learning_rate(*optimizer, 0.0);
    EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.0);
    descend(parameters, *optimizer);
    EXPECT_TRUE(parameters[0].equal(make_parameters()[0])) << "a rate of 0 moves nothing";
    set_learning_rate(*optimizer, 0.25);
    descend(parameters, *optimizer);
    EXPECT_FALSE(parameters[0].equal(make_parameters()[0]));
  }
}

TEST(Optimizer, RefusesWhatMakesNoSense) {
  EXPECT_ERROR(make_optimizer(make_parameters(), {.name = "adamww"}), ErrorKind::usage,
               "[optim] unknown optimizer; got adamww (did you mean adamw?)");
  EXPECT_ERROR(make_optimizer(make_parameters(), {.name = "sgd", .momentum = 0, .nesterov = true}),
               ErrorKind::usage,
               "[optim] Nesterov's method needs a momentum; got 0.000000, expected a number > 0");
}

}  // namespace
}  // namespace troika::optim
