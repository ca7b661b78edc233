// Models cut over a tensor axis, compared with one process.
#include "troika/parallel/tensor/tensor_parallel.h"

#include <gmock/gmock.h>

#include <chrono>
#include <future>

#include "tests/parallel/tensor_courses.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/comm/world/mesh_groups.h"
#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"
#include "troika/nn/dense.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/tensor/axis_functions.h"

namespace troika::parallel::tensor_test {
namespace {

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

// 19 words are cut unevenly over 2 and 4 ranks.
TEST(TensorParallel, SmoothsLabelsAndAddsZLoss) {
  for (const nn::LossTerms& terms : {nn::LossTerms{0.1, 0}, {0, 1e-2}, {0.2, 1e-2}}) {
    for (const bool sequence : {false, true}) {
      expect_one_process({.model = language("llama", 0, true, 2),
                          .sequence = sequence,
                          .steps = 4,
                          .terms = terms});
    }
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

// Every rank has the whole layers and their adapters, and computes its tokens.
TEST(TensorParallel, OfAdaptersBesideLayersOfTokensEqualsOneProcess) {
  auto model = language("llama", 0, true, 4);
  model.lora = {.rank = 3, .alpha = 6, .dropout = 0.3};
  SplitTable table;
  for (auto rule : split_table(model)) {
    const bool is_mlp = rule.module.find(".mlp") != std::string::npos;
    if (is_mlp && rule.split == Split::input) continue;
    if (is_mlp) rule = {rule.module, Split::tokens};
    table.push_back(rule);
  }
  for (const bool sequence : {false, true}) {
    expect_one_process({.model = model, .sequence = sequence, .table = table}, {2, 4});
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
// With sequence parallelism, the backward pass also gathers both inputs of column layers again.
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
      // A ring's all-reduce sends 2 (t - 1) / t of its bytes, an all-gather half of that.
      EXPECT_EQ(of_a_layer, (sequence ? 5 : 4) * activation);
    }
  });
}

// Rank 1 begins its sum when rank 0 has the gradient of the weight, which a rank that waited for
// the sum first would never have.
TEST(AxisFunctions, WeightsAreDifferentiatedWhileTheSumRuns) {
  for (const bool tokens : {false, true}) {
    std::promise<void> differentiated;
    comm::local::run(
        2,
        [&](const comm::Group& group) {
          const auto x = at::arange(12, at::kDouble).reshape({1, 2, 6}).requires_grad_();
          const auto weight = at::ones({6, 3}, at::kDouble).mul(group.rank() + 1).requires_grad_();
          const auto entered = tokens ? gather_tokens(x, group) : copy_to_axis(x, group);
          const auto late = weights_beside_sum(entered);
          ASSERT_TRUE(late);
          EXPECT_EQ(late->input != nullptr, tokens);
          const auto y = nn::dense_with_late_weights(entered, weight, {}, *late);
          const compat::GradientHook hook(weight, [&] {
            if (group.rank() == 0) differentiated.set_value();
          });
          if (group.rank() == 1) {
            entered.register_hook([&](const at::Tensor&) {
              EXPECT_EQ(differentiated.get_future().wait_for(std::chrono::seconds(30)),
                        std::future_status::ready);
            });
          }
          y.sum().backward();
          EXPECT_TRUE(x.grad().eq(3 * (1 + 2)).all().item<bool>());
          EXPECT_TRUE(weight.grad().allclose(
              entered.detach().flatten(0, 1).sum(0).unsqueeze(1).expand({6, 3})));
        },
        {.timeout = std::chrono::seconds(20)});
  }
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
