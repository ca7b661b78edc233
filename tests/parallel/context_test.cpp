// Models cut by tokens over a context axis, compared with one process.
#include "troika/parallel/context/context_parallel.h"

#include <gmock/gmock.h>

#include "tests/parallel/tensor_courses.h"
#include "tests/support/errors.h"
#include "troika/comm/world/mesh_groups.h"
#include "troika/nn/attention.h"
#include "troika/nn/dropout.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/token_part.h"
#include "troika/parallel/context/head_attention.h"
#include "troika/parallel/context/ring_attention.h"
#include "troika/parallel/context/sample_parts.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel::tensor_test {
namespace {

using layout::Axis;
using layout::ContextMethod;

// A language model with the implementation of attention that rings need.
nn::ModelOptions text_model(const std::string& name, double dropout, bool is_tied,
                            int64_t kv_heads = 0) {
  auto options = language(name, dropout, is_tied, kv_heads);
  options.attn_implementation = "auto";
  return options;
}

constexpr auto kMethods = {ContextMethod::ring, ContextMethod::all_to_all};

// Makes gradients their mean over the ranks of a group.
void average(const nn::Model& model, const comm::Group& group) {
  for (const auto& parameter : model.parameters()) {
    if (!parameter.requires_grad()) continue;
    group.all_reduce(parameter.grad(), comm::ReduceOp::sum);
    parameter.grad().div_(group.size());
  }
}

// Compares courses on meshes of a context and a tensor axis with that of one process.
void expect_one_process_on(const Case& of, const std::vector<std::string>& meshes,
                           ContextMethod method) {
  torch::manual_seed(1);
  const auto alone = make(of.model);
  const auto expected = train(*alone, of, nullptr);
  for (const auto& mesh : meshes) {
    SCOPED_TRACE(of.model.name + " on " + mesh);
    const auto ranks = layout::Mesh::parse(mesh).ranks();
    std::vector<std::shared_ptr<nn::Model>> models;
    for (int rank = 0; rank < ranks; ++rank) {
      torch::manual_seed(1);
      models.push_back(make(of.model));
    }
    comm::local::run(ranks, [&](const comm::Group& world) {
      const comm::MeshGroups groups(world, layout::Mesh::parse(mesh));
      auto& model = *models[static_cast<size_t>(world.rank())];
      const auto recomputed =
          nn::recompute(model, nn::recompute_plan(of.recompute, model.blocks().size()));
      const auto& axis = groups.along(Axis::tensor);
      const auto table = split_table(of.model);
      std::optional<TensorParallel> tensor;
      if (axis.size() > 1) {
        tensor.emplace(model, axis, table, TensorOptions{.sequence = of.sequence});
      }
      const auto& context = groups.along(Axis::context);
      const ContextParallel cut(model, context, table,
                                {.method = method, .tensor_ranks = axis.size()});
      expect_equal(train(model, of, tensor ? &*tensor : nullptr, [&] { average(model, context); }),
                   expected);
    });
  }
}

const std::vector<std::string> kContexts{"context=2", "context=4"};

TEST(ContextParallel, OfGptEqualsOneProcess) {
  for (const auto method : kMethods) {
    for (const double dropout : {0.0, 0.3}) {
      expect_one_process_on({.model = text_model("gpt", dropout, true)},
                            {"context=1", "context=2", "context=4"}, method);
    }
  }
}

TEST(ContextParallel, OfLlamaEqualsOneProcess) {
  for (const auto method : kMethods) {
    for (const int64_t kv_heads : {4, 2, 1}) {
      expect_one_process_on({.model = text_model("llama", 0, kv_heads == 2, kv_heads)}, kContexts,
                            method);
    }
  }
}

TEST(ContextParallel, RecomputesBlocksSmoothsLabelsAndAddsZLoss) {
  for (const auto method : kMethods) {
    expect_one_process_on({.model = text_model("gpt", 0.3, false),
                           .recompute = "full",
                           .steps = 4,
                           .terms = {0.2, 1e-2}},
                          {"context=2"}, method);
  }
}

// The dropout of adapters is cut by tokens and, in a row layer, by columns.
TEST(ContextParallel, WithATensorAxisEqualsOneProcess) {
  for (const auto method : kMethods) {
    for (const bool sequence : {false, true}) {
      auto gpt = text_model("gpt", 0.3, true);
      gpt.lora = {.rank = 3, .alpha = 6, .dropout = 0.3};
      const auto llama = text_model("llama", 0, true, 1);
      for (const auto& model : {gpt, llama}) {
        expect_one_process_on({.model = model, .sequence = sequence, .steps = 5},
                              {"context=2 tensor=2"}, method);
      }
    }
  }
}

// There are two replicas, and two ranks compute the samples of each together.
TEST(ContextParallel, OfReplicasEqualsOneProcess) {
  const auto options = text_model("llama", 0, true, 2);
  const auto train_rows = [&](nn::Model& model, Exchange& exchange, int64_t begin, int64_t end) {
    const auto optimizer = optim::make_optimizer(exchange.parameters(), {.name = "adamw"});
    for (int64_t step = 0; step < 5; ++step) {
      const auto text = (at::arange(4 * (kLength + 1), at::kLong) * 7 + step * 5) % kWords;
      const auto rows = text.view({4, kLength + 1}).slice(0, begin, end);
      loss_of(model, {rows.slice(1, 0, kLength), rows.slice(1, 1)}).backward();
      exchange.finish_backward();
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
  train_rows(*models[4], alone, 0, 4);
  comm::local::run(4, [&](const comm::Group& world) {
    const comm::MeshGroups groups(world, layout::Mesh::parse("data=2 context=2"));
    EXPECT_EQ(groups.replicas().size(), 4);
    auto& model = *models[static_cast<size_t>(world.rank())];
    const ContextParallel cut(model, groups.along(Axis::context), split_table(options));
    DataParallel replicas(model, groups.replicas());
    const int replica = groups.data().rank();
    train_rows(model, replicas, 2 * replica, 2 * replica + 2);
    for (const auto& [name, parameter] : nn::named_parameters(*models[4])) {
      expect_near(named(model, name), parameter, name);
    }
  });
}

// Rank 0 has the first and the last quarter of the tokens, rank 1 the others.
TEST(ContextParallel, ARankMayHaveIgnoredTargetsOnly) {
  const auto options = text_model("gpt", 0, true);
  auto batch = batch_of(options, 0);
  batch.targets.slice(1, 2, 6).fill_(-100);
  torch::manual_seed(1);
  const auto alone = make(options);
  const auto expected = loss_of(*alone, batch);
  expected.backward();
  comm::local::run(2, [&](const comm::Group& group) {
    const auto model = [&] {
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      torch::manual_seed(1);
      return make(options);
    }();
    const ContextParallel cut(*model, group, split_table(options));
    for (const bool through_logits : {false, true}) {
      const auto loss = loss_of(*model, batch, through_logits);
      expect_near(loss.detach(), expected.detach(), "loss");
      loss.backward();
      average(*model, group);
      for (const auto& [name, parameter] : nn::named_parameters(*alone)) {
        expect_near(named(*model, name).grad(), parameter.grad(), name);
      }
      model->zero_grad();
    }
  });
}

constexpr const char* kNoKeys =
    "got draws that are not keyed, expected an nn::KeyedDraws object on this thread (make one "
    "around each forward and backward pass, with the same seed and sample numbers on all ranks of "
    "the axis)";

struct Heads {
  nn::AttentionHeads heads;
  at::Tensor of_result;
};

Heads some_heads(int64_t heads, int64_t kv_heads, at::ScalarType type) {
  const auto wave = [&](int64_t count, double phase) {
    const layout::Dims shape{2, 16, count, 6};
    const auto numbers = at::arange(c10::multiply_integers(shape), at::kDouble);
    return at::sin(numbers * 0.73 + phase).view(shape).to(type);
  };
  return {{wave(heads, 0), wave(kv_heads, 1), wave(kv_heads, 2)}, wave(heads, 3).flatten(2)};
}

std::vector<at::Tensor> gradients_of(const nn::AttentionHeads& of,
                                     const std::function<at::Tensor()>& attend,
                                     const at::Tensor& of_result) {
  auto result = attend();
  result.backward(of_result);
  return {result.detach(), of.queries.grad(), of.keys.grad(), of.values.grad()};
}

void track(nn::AttentionHeads& heads) {
  for (auto* const x : {&heads.queries, &heads.keys, &heads.values}) {
    *x = x->detach().clone().set_requires_grad(true);
  }
}

// The result, and the gradients of queries, keys and values, which are the attention's inputs.
TEST(ContextAttention, EqualsThatOfOneProcess) {
  for (const auto& [type, tolerance] :
       {std::pair(at::kDouble, 1e-10), {at::kFloat, 1e-5}, {at::kBFloat16, 0.05}}) {
    for (const double dropout : {0.0, 0.4}) {
      auto [whole, of_result] = some_heads(4, 2, type);
      track(whole);
      const nn::SampleKeys keys{3, {5, 8}};
      const auto expected = [&] {
        const nn::KeyedDraws draws(keys);
        return gradients_of(
            whole,
            [&] {
              return nn::causal_attention(whole, dropout, nn::Attention::eager, std::nullopt);
            },
            of_result);
      }();
      comm::local::run(4, [&](const comm::Group& axis) {
        const nn::TokenPart part{axis.rank(), axis.size()};
        // A ring computes whole tiles, or blocks of one to three rows.
        for (const auto& [method, most_scores] : {std::pair(ContextMethod::ring, int64_t{1} << 20),
                                                  {ContextMethod::ring, 1},
                                                  {ContextMethod::ring, 2 * 4 * 2 * 3},
                                                  {ContextMethod::all_to_all, 0}}) {
          nn::AttentionHeads own{own_part(whole.queries.detach(), part),
                                 own_part(whole.keys.detach(), part),
                                 own_part(whole.values.detach(), part)};
          track(own);
          const nn::KeyedDraws draws(keys);
          const nn::TokenPartGuard positions(part);
          const auto found = gradients_of(
              own,
              [&] {
                return method == ContextMethod::ring
                           ? ring_attention(own, dropout, std::nullopt, axis, most_scores)
                           : head_attention(own, dropout, nn::Attention::eager, std::nullopt, axis);
              },
              own_part(of_result, part));
          for (size_t i = 0; i < found.size(); ++i) {
            EXPECT_EQ(found[i].scalar_type(), type);
            EXPECT_TRUE(found[i].allclose(own_part(expected[i], part), tolerance, tolerance))
                << type << " dropout " << dropout << " tensor " << i << " of rank " << axis.rank();
          }
        }
      });
    }
  }
}

// Nothing is copied where the order of heads and tokens is the same.
TEST(ContextAttention, LeavesInputsOfOneHeadAsTheyAre) {
  const auto [heads, of_result] = some_heads(1, 1, at::kDouble);
  const auto before = heads.queries.clone();
  auto tracked = heads;
  tracked.queries = heads.queries.detach().set_requires_grad(true);
  const auto mixed = ring_attention(tracked, 0, std::nullopt, comm::local::alone());
  EXPECT_TRUE(heads.queries.equal(before));
  const auto gradient = [&] {
    return torch::autograd::grad({mixed}, {tracked.queries}, {of_result}, /*retain_graph=*/true)
        .front();
  };
  const auto expected = gradient();
  mixed.detach().zero_();
  EXPECT_TRUE(gradient().equal(expected));
}

TEST(ContextAttention, NeedsKeyedDrawsForDropout) {
  comm::local::run(2, [](const comm::Group& axis) {
    const auto heads = some_heads(2, 2, at::kDouble).heads;
    EXPECT_ERROR(ring_attention(heads, 0.5, std::nullopt, axis), ErrorKind::usage,
                 std::string("[nn] dropout of a part of whole tensors; ") + kNoKeys);
    const nn::TokenPartGuard positions({axis.rank(), axis.size()});
    EXPECT_ERROR(nn::Dropout(0.5).forward(at::ones({1, 4, 2})), ErrorKind::usage,
                 std::string("[nn] dropout of a part of whole tensors; ") + kNoKeys);
  });
}

// With c ranks, b samples of s tokens and h elements of keys, a layer's ring sends what
// ring_attention.h says. Its all-to-alls send 4 tensors of (c - 1) / c^2 b s h elements in each
// pass.
TEST(ContextParallel, SendsTheBytesOfTheFormulas) {
  const auto options = text_model("llama", 0, true, 4);
  for (const int ranks : {2, 4}) {
    comm::local::run(ranks, [&](const comm::Group& group) {
      const auto bytes_with = [&](int64_t layers, ContextMethod method) {
        auto of = options;
        of.layers = layers;
        const auto model = make(of);
        const ContextParallel cut(*model, group, split_table(of), {.method = method});
        const auto before = group.counters();
        loss_of(*model, batch_of(of, 0)).backward();
        const auto after = group.counters();
        return static_cast<double>(after.bytes - before.bytes + after.bytes_of_messages -
                                   before.bytes_of_messages);
      };
      const auto of_a_layer = [&](ContextMethod method) {
        return bytes_with(3, method) - bytes_with(2, method);
      };
      const double keys = kBatch * kLength * 16 * sizeof(double), c = ranks;
      EXPECT_EQ(of_a_layer(ContextMethod::ring), 2 * (c - 1) / c * keys * 2 + 2 * keys);
      EXPECT_EQ(of_a_layer(ContextMethod::all_to_all), 2 * 4 * (c - 1) / (c * c) * keys);
    });
  }
}

TEST(ContextParallel, RefusesSecondDerivatives) {
  comm::local::run(2, [](const comm::Group& axis) {
    auto own = some_heads(2, 2, at::kDouble).heads;
    track(own);
    const auto y = ring_attention(own, 0, std::nullopt, axis).square().sum();
    EXPECT_ERROR(torch::autograd::grad({y}, {own.queries}, {}, true, /*create_graph=*/true),
                 ErrorKind::usage,
                 "[compat] ring attention may be differentiated once; got a backward pass with "
                 "create_graph, expected one without (make the model of LibTorch's operators for "
                 "gradients of gradients)");
  });
}

}  // namespace
}  // namespace troika::parallel::tensor_test
