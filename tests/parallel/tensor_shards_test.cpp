// The shards of a tensor axis, and what cannot be cut.
#include <gmock/gmock.h>

#include <map>
#include <mutex>

#include "tests/parallel/tensor_models.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/nn/linear.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/tensor/tensor_exchange.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace troika::parallel::tensor_test {
namespace {

TEST(TensorParallel, HoldsOnlyItsShards) {
  const auto options = language("llama", 0, false, 2);
  std::vector<std::shared_ptr<nn::Model>> models;
  for (int rank = 0; rank < 4; ++rank) {
    torch::manual_seed(5);
    models.push_back(make(options));
  }
  comm::local::run(4, [&](const comm::Group& group) {
    const auto& model = models[static_cast<size_t>(group.rank())];
    const auto before = nn::named_parameters(*model);
    Named whole;
    for (const auto& [name, parameter] : before) whole[name] = parameter.detach().clone();
    TensorParallel tensor(*model, group, split_table(options));
    const auto shape = [&](const std::string& name) { return named(*model, name).sizes().vec(); };
    using Shape = std::vector<int64_t>;
    const std::string layer = "model.layers.1.";
    EXPECT_EQ(shape(layer + "self_attn.q_proj.weight"), (Shape{4, 16}));
    EXPECT_EQ(shape(layer + "self_attn.k_proj.weight"), (Shape{4, 16})) << "one of two heads";
    EXPECT_EQ(shape(layer + "self_attn.o_proj.weight"), (Shape{16, 4}));
    EXPECT_EQ(shape(layer + "mlp.up_proj.weight"), (Shape{3, 16}));
    EXPECT_EQ(shape(layer + "mlp.down_proj.weight"), (Shape{16, 3}));
    EXPECT_EQ(shape("lm_head.weight"), (Shape{group.rank() == 0 ? 4 : 5, 16}));
    EXPECT_EQ(shape("model.norm.weight"), (Shape{16}));
    for (const auto& entry : tensor.shards()) {
      ASSERT_TRUE(entry.box);
      entry.box->verify();
      at::Tensor part = whole.at(entry.first);
      for (size_t dim = 0; dim < entry.box->size.size(); ++dim) {
        part = part.narrow(static_cast<int64_t>(dim), entry.box->offset[dim], entry.box->size[dim]);
      }
      EXPECT_TRUE(entry.second.equal(part)) << entry.box->text();
    }
    tensor.make_whole();
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      EXPECT_TRUE(parameter.equal(whole.at(name))) << name;
    }
    const at::NoGradGuard no_grad;
    const auto alone = make(options);
    for (const auto& [name, parameter] : nn::named_parameters(*alone)) {
      parameter.copy_(whole.at(name));
    }
    const auto tokens = batch_of(options, 1).inputs;
    EXPECT_TRUE(model->forward(tokens).equal(alone->forward(tokens)));
  });
}

// A shard of three parts, such as queries, keys and values, along each dimension.
TEST(ParameterCut, FlatPartsHoldTheElementsOfARange) {
  const layout::Dims shape{6, 12, 2};
  const auto whole = at::arange(6 * 12 * 2, at::kLong).view(shape);
  for (const auto& [dim, size] : {std::pair(0, 1), std::pair(1, 2)}) {
    const ParameterCut cut{.name = "weight",
                           .shape = shape,
                           .dim = dim,
                           .ranges = {{0, size}, {2, 2 + size}, {4, 4 + size}}};
    const auto shard = cut.shard_of(whole).flatten();
    for (int64_t begin = 0; begin <= shard.numel(); begin += 5) {
      for (int64_t end = begin; end <= shard.numel(); end += 7) {
        const auto range = shard.slice(0, begin, end);
        int64_t count = 0;
        for (const auto& [box, positions] : cut.flat_parts({begin, end})) {
          box.verify();
          auto part = whole;
          for (size_t d = 0; d < shape.size(); ++d) {
            part = part.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
          }
          const auto expected = part.flatten().slice(0, box.flat->begin, box.flat->end);
          EXPECT_TRUE(range.index_select(0, positions).equal(expected)) << box.text();
          count += box.count();
        }
        EXPECT_EQ(count, end - begin) << begin << " to " << end << ", dimension " << dim;
      }
    }
  }
}

// Kv heads that two ranks share count once, and so do parameters that all ranks have.
TEST(TensorExchange, CountsEachElementOnceInSumsOverTheAxis) {
  const auto options = language("llama", 0, false, 2);
  std::vector<std::shared_ptr<nn::Model>> models;
  for (int rank = 0; rank < 4; ++rank) models.push_back(make(options));
  comm::local::run(4, [&](const comm::Group& group) {
    auto& model = *models[static_cast<size_t>(group.rank())];
    std::map<std::string, int64_t> elements;
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      elements[name] = parameter.numel();
    }
    const TensorExchange exchange(model, group, split_table(options), {}, [&] {
      return std::make_unique<DataParallel>(model, comm::local::alone());
    });
    const auto shards = exchange.parameters();
    const auto sums = at::zeros({static_cast<int64_t>(shards.size()), 2}, at::kDouble);
    for (size_t i = 0; i < shards.size(); ++i) {
      sums.select(0, static_cast<int64_t>(i)).fill_(shards[i].tensor.numel());
    }
    exchange.complete_sums(sums);
    for (size_t i = 0; i < shards.size(); ++i) {
      EXPECT_EQ(sums[static_cast<int64_t>(i)][0].item<double>(), elements.at(shards[i].name))
          << shards[i].name;
    }
  });
}

// Boxes of all ranks cover fused queries, keys and values.
// As if replicas had averaged gradients in another order on each rank of the axis.
TEST(TensorParallel, WholeParametersHaveTheSameGradientsOnAllRanks) {
  const auto options = language("llama", 0, true, 4);
  comm::local::run(2, [&](const comm::Group& group) {
    for (const bool sequence : {false, true}) {
      const auto model = make(options);
      TensorParallel tensor(*model, group, split_table(options), {.sequence = sequence});
      loss_of(*model, batch_of(options, 0)).backward();
      for (const auto& parameter : model->parameters()) {
        parameter.mutable_grad().mul_(1 + 1e-12 * group.rank());
      }
      tensor.finish_backward();
      int whole = 0;
      for (const auto& [cut, parameter] : tensor.parameters()) {
        if (!cut.is_whole()) continue;
        ++whole;
        const auto first = parameter.grad().clone();
        group.broadcast(first, 0).wait();
        EXPECT_TRUE(first.equal(parameter.grad())) << cut.name;
      }
      EXPECT_GT(whole, 2);
    }
  });
}

TEST(TensorParallel, CutsFusedHeadsIntoOneBoxEach) {
  const auto options = language("gpt", 0, true);
  std::mutex mutex;
  std::map<std::string, std::vector<layout::Box>> boxes;
  comm::local::run(2, [&](const comm::Group& group) {
    const auto model = make(options);
    const TensorParallel tensor(*model, group, split_table(options));
    const std::scoped_lock lock(mutex);
    for (const auto& entry : tensor.shards()) {
      const bool is_copy = entry.box->size == entry.box->shape;
      if (!is_copy || group.rank() == 0) boxes[entry.first].push_back(*entry.box);
    }
  });
  for (const auto& [name, parts] : boxes) EXPECT_FALSE(layout::cover_fault(parts)) << name;
  EXPECT_EQ(boxes.at("transformer.h.0.attn.c_attn.weight").size(), 6u);
  EXPECT_EQ(boxes.at("transformer.h.0.mlp.c_fc.weight").size(), 2u);
}

// Runs `make_tensor` on several ranks, which must throw before any communication.
void expect_refused(int ranks, const nn::ModelOptions& options, const SplitTable& table,
                    const std::string& message, const TensorOptions& how = {}) {
  comm::local::run(ranks, [&](const comm::Group& group) {
    if (group.rank() != 0) return;  // the others do not answer
    const auto model = make(options);
    EXPECT_ERROR(TensorParallel(*model, group, table, how), ErrorKind::usage, message);
  });
}

TEST(TensorParallel, RefusesSizesThatCannotBeCut) {
  auto gpt = language("gpt", 0, true);
  expect_refused(3, gpt, split_table(gpt),
                 "[parallel] transformer.h.0.attn.c_attn cannot be cut over the tensor axis; got 4 "
                 "heads, 3 ranks, expected a multiple of 3 heads");
  gpt.vocab_size = 2;
  expect_refused(4, gpt, split_table(gpt),
                 "[parallel] transformer.wte cannot be cut over the tensor axis; got 2 rows, 4 "
                 "ranks, expected at least 4 rows");
  auto llama = language("llama", 0, true, 2);
  llama.heads = 6;
  llama.width = 12;
  expect_refused(3, llama, split_table(llama),
                 "[parallel] model.layers.0.self_attn.k_proj cannot be cut over the tensor axis; "
                 "got 2 heads, 3 ranks, expected one number a multiple of the other");
  llama = language("llama", 0, true);
  llama.ffn_width = 10;
  expect_refused(4, llama, split_table(llama),
                 "[parallel] model.layers.0.mlp.gate_proj cannot be cut over the tensor axis; got "
                 "10 outputs, 4 ranks, expected a multiple of 4 outputs");
  const auto two = mlp(2, 0);
  expect_refused(3, two, split_table(two),
                 "[parallel] layers.0 cannot be cut over the tensor axis; got 8 outputs, 3 ranks, "
                 "expected a multiple of 3 outputs");
  expect_refused(2, two, split_table(two),
                 "[parallel] sequence parallelism needs a model that embeds tokens; got no "
                 "nn::Embedding with a rule of kind Split::vocabulary",
                 {.sequence = true});
}

TEST(TensorParallel, RefusesModulesWithoutARule) {
  const nn::ModelOptions unet{.name = "unet", .image_size = 32, .base_width = 2};
  EXPECT_TRUE(split_table(unet).empty());
  expect_refused(2, unet, split_table(unet),
                 "[parallel] block encoder.0.0 cannot be cut over the tensor axis; got no rule for "
                 "encoder.0.0.conv, expected a rule in the table for each module with parameters "
                 "or dropout");
  const auto options = mlp(1, 0.5);
  expect_refused(2, options, {{"layers.*", Split::column}, {"head", Split::row}},
                 "[parallel] module dropout.0 cannot be cut over the tensor axis; got no rule for "
                 "dropout.0, expected a rule in the table for each module with parameters or "
                 "dropout");
  expect_refused(2, options,
                 {{"layers.*", Split::column}, {"dropout.*", Split::row}, {"head", Split::row}},
                 "[parallel] module dropout.0 cannot be cut by the rule for dropout.0; got "
                 "troika::nn::Dropout, expected an nn::Linear, nn::Conv1D, or nn::Conv2d of "
                 "one group");
}

TEST(TensorParallel, RefusesTokensThatCannotBeCut) {
  const auto options = language("gpt", 0, true);
  comm::local::run(2, [&](const comm::Group& group) {
    const auto model = make(options);
    const TensorParallel tensor(*model, group, split_table(options), {.sequence = true});
    if (group.rank() != 0) return;
    EXPECT_ERROR(model->forward(at::zeros({1, 5}, at::kLong)), ErrorKind::usage,
                 "[parallel] the tokens cannot be cut over the tensor axis; got 5 tokens, 2 ranks, "
                 "expected a multiple of 2 tokens (change data.context or the size of the axis, or "
                 "turn mesh.sequence_parallel off)");
  });
}

// A program's own model and rules.
TEST(TensorParallel, TakesRulesOfAProgram) {
  const auto make_own = [] {
    auto model = std::make_shared<nn::Model>();
    const auto in = model->place("in", std::make_shared<nn::Linear>(3, 4));
    const auto out = model->place("out", std::make_shared<nn::Linear>(4, 3));
    model->add_block({"both", {"in", "out"}, {}, [=](const at::Tensor& x) {
                        return x + out->forward(in->forward(x).tanh());
                      }});
    model->to(at::kDouble);
    return model;
  };
  torch::manual_seed(4);
  const auto alone = make_own();
  std::vector<std::shared_ptr<nn::Model>> models{make_own(), make_own()};
  for (auto& model : models) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      model->parameters()[i].copy_(alone->parameters()[i]);
    }
  }
  const auto x = at::arange(6, at::kDouble).sin().view({2, 3});
  const auto expected = alone->forward(x);
  comm::local::run(2, [&](const comm::Group& group) {
    auto& model = *models[static_cast<size_t>(group.rank())];
    const TensorParallel tensor(model, group, {{"in", Split::column}, {"out", Split::row}});
    expect_near(model.forward(x), expected, "outputs");
  });
}

}  // namespace
}  // namespace troika::parallel::tensor_test
