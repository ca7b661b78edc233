// Models cut over a tensor axis, compared with one process.
#include "troika/parallel/tensor/tensor_parallel.h"

#include <gmock/gmock.h>

#include "tests/parallel/tensor_models.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/comm/world/mesh_groups.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/tensor/axis_functions.h"

namespace troika::parallel::tensor_test {
namespace {

// One training run, on one process or as each rank of an axis sees it.
struct Course {
  at::Tensor outputs, evaluated, predicted, input_gradient;  // before the first step
  Named gradients;                                           // whole, of the first step
  double gradient_squares = 0;
  std::vector<double> losses;
  Named weights;  // whole, after the last step
};

struct Case {
  nn::ModelOptions model;
  bool sequence = false;
  std::string recompute = "none";
};

Course train(nn::Model& model, const nn::ModelOptions& options, TensorParallel* tensor) {
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
          {batch.inputs}, std::make_shared<const nn::OutputLoss>(nn::OutputLoss{
                              .targets = batch.targets, .kind = nn::OutputLoss::Kind::each}));
      course.evaluated = each[0];
      course.predicted = each[1];
    }
    model.train();
  }
  std::vector<at::Tensor> trained;
  for (const auto& [name, parameter] : nn::trained_parameters(model)) trained.push_back(parameter);
  const auto optimizer = optim::make_optimizer(trained, {.name = "adamw", .lr = 0.01});
  for (int64_t step = 0; step < 20; ++step) {
    const nn::KeyedDraws draws({static_cast<uint64_t>(step), {0, 1, 2}});
    const auto batch = batch_of(options, step);
    const auto loss = loss_of(model, batch, /*through_logits=*/step % 2 == 1);
    loss.backward();
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
  return course;
}

void expect_equal(const Course& found, const Course& expected) {
  expect_near(found.outputs, expected.outputs, "outputs");
  expect_near(found.evaluated, expected.evaluated, "evaluated losses");
  if (expected.predicted.defined()) {
    EXPECT_TRUE(found.predicted.equal(expected.predicted));
  }
  expect_near(found.input_gradient, expected.input_gradient, "gradient of the input");
  EXPECT_NEAR(found.gradient_squares, expected.gradient_squares, kTolerance);
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

void expect_one_process(const Case& of, std::vector<int> sizes = {1, 2, 4}) {
  torch::manual_seed(1);
  const auto alone = make(of.model);
  const auto expected = train(*alone, of.model, nullptr);
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
      TensorParallel tensor(model, group, split_table(of.model), {.sequence = of.sequence});
      expect_equal(train(model, of.model, &tensor), expected);
    });
  }
}

TEST(TensorParallel, OfMlpsEqualsOneProcess) {
  for (const int64_t layers : {0, 1, 2, 3}) {
    for (const double dropout : {0.0, 0.3}) expect_one_process({.model = mlp(layers, dropout)});
  }
}

TEST(TensorParallel, OfGptEqualsOneProcess) {
  for (const double dropout : {0.0, 0.3}) {
    for (const bool is_tied : {true, false}) {
      expect_one_process({.model = language("gpt", dropout, is_tied)});
    }
  }
}

TEST(TensorParallel, OfLlamaEqualsOneProcess) {
  for (const int64_t kv_heads : {4, 2, 1}) {
    expect_one_process({.model = language("llama", 0, kv_heads == 2, kv_heads)});
  }
}

TEST(TensorParallel, CutsTokensBetweenLayers) {
  for (const double dropout : {0.0, 0.3}) {
    expect_one_process({.model = language("gpt", dropout, true), .sequence = true});
  }
  for (const int64_t kv_heads : {4, 2, 1}) {
    expect_one_process({.model = language("llama", 0, kv_heads == 2, kv_heads), .sequence = true});
  }
}

TEST(TensorParallel, RecomputesBlocks) {
  for (const bool sequence : {false, true}) {
    expect_one_process(
        {.model = language("gpt", 0.3, true), .sequence = sequence, .recompute = "full"}, {2});
    expect_one_process(
        {.model = language("llama", 0, false, 2), .sequence = sequence, .recompute = "sqrt"}, {2});
  }
}

// Beside layers that are cut by outputs, by inputs, and not at all, with dropout of their own.
TEST(TensorParallel, OfAdaptersEqualsOneProcess) {
  for (auto model : {mlp(1, 0.3), mlp(2, 0), language("gpt", 0.3, true),
                     language("llama", 0, false, 4), language("llama", 0, true, 1)}) {
    model.lora = {.rank = 3, .alpha = 6, .dropout = 0.3};
    expect_one_process({.model = model});
    if (!is_text(model)) continue;
    expect_one_process({.model = model, .sequence = true, .recompute = "full"}, {2});
  }
}

// Two replicas on a data axis, whose layers two ranks each compute together. The heads of keys and
// values have copies, whose gradients are completed after the replicas' mean.
TEST(TensorParallel, OfReplicasEqualsOneProcess) {
  const auto options = language("llama", 0, true, 1);
  const auto train_rows = [&](nn::Model& model, Exchange& exchange, TensorParallel* tensor,
                              int64_t begin, int64_t end) {
    const auto optimizer = optim::make_optimizer(exchange.parameters(), {.name = "adamw"});
    for (int64_t step = 0; step < 5; ++step) {
      const auto text = (at::arange(4 * (kLength + 1), at::kLong) * 7 + step * 5) % kWords;
      const auto rows = text.view({4, kLength + 1}).slice(0, begin, end);
      loss_of(model, {rows.slice(1, 0, kLength), rows.slice(1, 1)}).backward();
      exchange.finish_backward();
      if (tensor) tensor->finish_backward();
      exchange.step(*optimizer);
      model.zero_grad();
    }
  };
  std::vector<std::shared_ptr<nn::Model>> models;
  for (int i = 0; i < 5; ++i) {
    torch::manual_seed(6);
    models.push_back(make(options));
  }
  DataParallel alone(*models[4], comm::local::alone());
  train_rows(*models[4], alone, nullptr, 0, 4);
  comm::local::run(4, [&](const comm::Group& world) {
    const comm::MeshGroups groups(world, layout::Mesh::parse("data=2 tensor=2", 4));
    auto& model = *models[static_cast<size_t>(world.rank())];
    TensorParallel tensor(model, groups.along(layout::Axis::tensor), split_table(options));
    const auto& data = groups.along(layout::Axis::data);
    DataParallel replicas(model, data);
    train_rows(model, replicas, &tensor, 2 * data.rank(), 2 * data.rank() + 2);
    tensor.make_whole();
    for (const auto& [name, parameter] : nn::named_parameters(*models[4])) {
      expect_near(named(model, name), parameter, name);
    }
  });
}

// Sums of a layer: two in the forward and two in the backward pass, each of [batch, tokens, width].
TEST(TensorParallel, SendsTheBytesOfTheFormulas) {
  const auto options = language("llama", 0, true, 4);
  comm::local::run(2, [&](const comm::Group& group) {
    for (const bool sequence : {false, true}) {
      const auto bytes_with = [&](int64_t layers) {
        auto of = options;
        of.layers = layers;
        const auto model = make(of);
        TensorParallel tensor(*model, group, split_table(of), {.sequence = sequence});
        const auto before = group.counters().bytes;
        loss_of(*model, batch_of(of, 0)).backward();
        return static_cast<double>(group.counters().bytes - before);
      };
      const double of_a_layer = bytes_with(3) - bytes_with(2);
      const double activation = kBatch * kLength * 16 * sizeof(double);
      // A ring's all-reduce sends 2 (t - 1) / t of its bytes.
      EXPECT_EQ(of_a_layer, 4 * activation) << sequence;
    }
  });
}

TEST(AxisFunctions, RefuseSecondDerivatives) {
  comm::local::run(2, [](const comm::Group& group) {
    const auto x = at::ones({2, 2, 2}).requires_grad_();
    const auto y = copy_to_axis(x, group).square().sum();
    EXPECT_ERROR(torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true),
                 ErrorKind::usage,
                 "[compat] a collective over the tensor axis may be differentiated once; got a "
                 "backward pass with create_graph, expected one without (make the model of "
                 "LibTorch's operators for gradients of gradients)");
  });
}

}  // namespace
}  // namespace troika::parallel::tensor_test
