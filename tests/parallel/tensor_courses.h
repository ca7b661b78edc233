// Training runs of models cut over a tensor axis, compared with one process.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/tensor_models.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace troika::parallel::tensor_test {

// One training run, on one process or as each rank of an axis sees it.
struct Course {
  at::Tensor outputs, evaluated, predicted, input_gradient;  // before the first step
  Named gradients;                                           // whole, of the first step
  double gradient_squares = 0;
  std::vector<double> losses;
  Named weights;  // whole, with buffers, after the last step
};

struct Case {
  nn::ModelOptions model;
  bool sequence = false;
  std::string recompute = "none";
  std::string optimizer = "adamw";
  double lr = 0.01;
  int64_t steps = 20;
  nn::LossTerms terms = {};
  SplitTable table = {};  // empty: the model's
};

// `finish`, if any, is called behind each backward pass.
inline Course train(nn::Model& model, const Case& of, TensorParallel* tensor,
                    const std::function<void()>& finish = {}) {
  const auto& options = of.model;
  const auto whole = [&](const std::string& name, const at::Tensor& shard) {
    return tensor ? tensor->gather(name, shard) : shard.detach().clone();
  };
  Course course;
  {
    const at::NoGradGuard no_grad;
    model.eval();
    const auto batch = batch_of(options, 7);
    course.outputs = model.forward(batch.inputs);
    if (model.has_output_layer()) {
      const auto each = model.forward(
          {batch.inputs},
          std::make_shared<const nn::OutputLoss>(nn::OutputLoss{
              .targets = batch.targets, .kind = nn::OutputLoss::Kind::each, .terms = of.terms}));
      course.evaluated = each[0];
      course.predicted = each[1];
    }
    model.train();
  }
  std::vector<at::Tensor> trained;
  for (const auto& [name, parameter] : nn::trained_parameters(model)) trained.push_back(parameter);
  const auto optimizer = optim::make_optimizer(trained, {.name = of.optimizer, .lr = of.lr});
  for (int64_t step = 0; step < of.steps; ++step) {
    const nn::KeyedDraws draws({static_cast<uint64_t>(step), {0, 1, 2}});
    const auto batch = batch_of(options, step);
    const auto loss = loss_of(model, batch, /*through_logits=*/step % 2 == 1, of.terms);
    loss.backward();
    if (finish) finish();
    if (tensor) tensor->finish_backward();
    course.losses.push_back(loss.item<double>());
    if (step == 0) {
      if (batch.inputs.grad().defined()) course.input_gradient = batch.inputs.grad().clone();
      for (const auto& [name, parameter] : nn::trained_parameters(model)) {
        course.gradients[name] = whole(name, parameter.grad());
      }
      for (const auto& [name, gradient] : course.gradients) {
        course.gradient_squares += gradient.square().sum().item<double>();
      }
      if (tensor) course.gradient_squares = tensor->gradient_squares();
    }
    optimizer->step();
    model.zero_grad();
  }
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    course.weights[name] = whole(name, parameter);
  }
  for (const auto& [name, buffer] : nn::named_buffers(model)) course.weights[name] = buffer.clone();
  return course;
}

inline void expect_equal(const Course& found, const Course& expected) {
  expect_near(found.outputs, expected.outputs, "outputs");
  expect_near(found.evaluated, expected.evaluated, "evaluated losses");
  if (expected.predicted.defined()) {
    EXPECT_TRUE(found.predicted.equal(expected.predicted));
  }
  expect_near(found.input_gradient, expected.input_gradient, "gradient of the input");
  EXPECT_NEAR(found.gradient_squares, expected.gradient_squares,
              kTolerance * std::max(1.0, expected.gradient_squares));
  for (const auto& [name, gradient] : expected.gradients) {
    expect_near(found.gradients.at(name), gradient, "gradient of " + name);
  }
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], kTolerance) << step;
  }
  for (const auto& [name, weight] : expected.weights) {
    expect_near(found.weights.at(name), weight, name);
  }
}

inline void expect_one_process(const Case& of, std::vector<int> sizes = {1, 2, 4}) {
  torch::manual_seed(1);
  const auto alone = make(of.model);
  const auto expected = train(*alone, of, nullptr);
  for (const int ranks : sizes) {
    SCOPED_TRACE(of.model.name + " on " + std::to_string(ranks) + " ranks");
    torch::manual_seed(1);
    std::vector<std::shared_ptr<nn::Model>> models;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == 1) torch::manual_seed(2);  // other ranks get the parameters of rank 0
      models.push_back(make(of.model));
    }
    comm::local::run(ranks, [&](const comm::Group& group) {
      auto& model = *models[static_cast<size_t>(group.rank())];
      const auto blocks = model.blocks().size();
      const auto recomputed = nn::recompute(model, nn::recompute_plan(of.recompute, blocks));
      const auto table = of.table.empty() ? split_table(of.model) : of.table;
      TensorParallel tensor(model, group, table, {.sequence = of.sequence});
      expect_equal(train(model, of, &tensor), expected);
    });
  }
}

}  // namespace troika::parallel::tensor_test
