// Optimizers against LibTorch's optimizers of the same names.
#include "troika/optim/optimizer.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"

namespace troika::optim {
namespace {

constexpr double kRate = 0.02, kDecay = 0.1, kEps = 1e-3;

// Large enough for several ranges and vector tails; the last never has a gradient.
std::vector<at::Tensor> make_parameters(at::ScalarType type) {
  torch::manual_seed(5);
  std::vector<at::Tensor> parameters;
  for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 4}, {4}, {181, 333}, {5}}) {
    parameters.push_back(at::randn(shape, at::kDouble).to(type).requires_grad_());
  }
  return parameters;
}

// Gradients do not depend on the parameters, so that differences do not grow by themselves. The
// second parameter has no gradient in every third step.
template <typename Optimizer>
void descend(const std::vector<at::Tensor>& parameters, Optimizer& optimizer) {
  torch::manual_seed(6);
  for (int step = 0; step < 20; ++step) {
    for (size_t i = 0; i + 1 < parameters.size(); ++i) {
      const auto gradient = at::randn(parameters[i].sizes(), at::kDouble);
      const bool is_missing = i == 1 && step % 3 == 1;
      parameters[i].mutable_grad() =
          is_missing ? at::Tensor() : gradient.to(parameters[i].scalar_type());
    }
    optimizer.step();
  }
}

template <typename MakeTheirs>
void expect_same_course(const OptimizerOptions& options, const MakeTheirs& make_theirs) {
  for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-12), {at::kFloat, 1e-6}}) {
    const auto ours = make_parameters(type), theirs = make_parameters(type);
    descend(ours, *make_optimizer(ours, options));
    auto expected = make_theirs(theirs);
    descend(theirs, expected);
    for (size_t i = 0; i < ours.size(); ++i) {
      const double difference = (ours[i] - theirs[i]).abs().max().template item<double>();
      EXPECT_LE(difference, tolerance * theirs[i].abs().max().template item<double>())
          << options.name << " " << c10::toString(type) << " parameter " << i;
      EXPECT_EQ(ours[i].equal(make_parameters(type)[i]), i == 3) << i;
    }
  }
}

OptimizerOptions options_of(const std::string& name) {
  return {.name = name,
          .lr = kRate,
          .weight_decay = kDecay,
          .momentum = 0.8,
          .beta1 = 0.7,
          .beta2 = 0.9,
          .eps = kEps};
}

TEST(Optimizer, SgdIsLibTorchs) {
  for (const double momentum : {0.0, 0.8}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      auto options = options_of("sgd");
      options.momentum = momentum;
      options.nesterov = nesterov;
      expect_same_course(options, [&](const auto& parameters) {
        return torch::optim::SGD(
            parameters,
            torch::optim::SGDOptions(kRate).momentum(momentum).nesterov(nesterov).weight_decay(
                kDecay));
      });
    }
  }
}

TEST(Optimizer, AdamIsLibTorchs) {
  expect_same_course(options_of("adam"), [](const auto& parameters) {
    return torch::optim::Adam(
        parameters,
        torch::optim::AdamOptions(kRate).betas({0.7, 0.9}).eps(kEps).weight_decay(kDecay));
  });
}

TEST(Optimizer, AdamWIsLibTorchs) {
  expect_same_course(options_of("adamw"), [](const auto& parameters) {
    return torch::optim::AdamW(
        parameters,
        torch::optim::AdamWOptions(kRate).betas({0.7, 0.9}).eps(kEps).weight_decay(kDecay));
  });
}

TEST(Optimizer, AdagradIsLibTorchs) {
  expect_same_course(options_of("adagrad"), [](const auto& parameters) {
    return torch::optim::Adagrad(
        parameters, torch::optim::AdagradOptions(kRate).eps(kEps).weight_decay(kDecay));
  });
}

TEST(Optimizer, TheLearningRateCanBeSetForEveryOne) {
  for (const auto& name : optimizer_names()) {
    SCOPED_TRACE(name);
    const auto before = make_parameters(at::kDouble), parameters = make_parameters(at::kDouble);
    const auto optimizer = make_optimizer(parameters, {.name = name, .lr = 0.5});
    EXPECT_EQ(optimizer->learning_rate(), 0.5);
    optimizer->set_learning_rate(0.0);
    EXPECT_EQ(optimizer->learning_rate(), 0.0);
    descend(parameters, *optimizer);
    EXPECT_TRUE(parameters[0].equal(before[0])) << "a rate of 0 moves nothing";
    optimizer->set_learning_rate(0.25);
    descend(parameters, *optimizer);
    EXPECT_FALSE(parameters[0].equal(before[0]));
  }
}

TEST(Optimizer, VectorsCanBeLeftOutOfWeightDecay) {
  for (const auto& name : optimizer_names()) {
    SCOPED_TRACE(name);
    const auto run = [&](double decay, bool decay_vectors) {
      auto parameters = make_parameters(at::kDouble);
      auto options = options_of(name);
      options.weight_decay = decay;
      options.decay_vectors = decay_vectors;
      descend(parameters, *make_optimizer(parameters, options));
      return parameters;
    };
    const auto none = run(0, false), matrices = run(kDecay, false), all = run(kDecay, true);
    EXPECT_TRUE(matrices[1].equal(none[1]));
    EXPECT_FALSE(all[1].equal(none[1]));
    EXPECT_FALSE(matrices[0].equal(none[0]));
    EXPECT_TRUE(matrices[0].equal(all[0]));
  }
}

TEST(Optimizer, RefusesWhatMakesNoSense) {
  const auto parameters = make_parameters(at::kDouble);
  EXPECT_ERROR(make_optimizer(parameters, {.name = "adamww"}), ErrorKind::usage,
               "[optim] unknown optimizer; got adamww (did you mean adamw?)");
  EXPECT_ERROR(make_optimizer(parameters, {.name = "sgd", .momentum = 0, .nesterov = true}),
               ErrorKind::usage,
               "[optim] Nesterov's method needs a momentum; got 0.000000, expected a number > 0");
}

}  // namespace
}  // namespace troika::optim
