#include "troika/nn/block_wrapper.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"
#include "troika/compat/torch.h"
#include "troika/nn/offload.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

using testing::ElementsAre;

constexpr const char* kKindNames[] = {"offload", "recompute", "gather", "context", "tensor"};

using Calls = std::vector<std::string>;

class Logged : public BlockWrapper {
 public:
  Logged(WrapperKind kind, Calls& calls) : kind_(kind), calls_(calls) {}
  WrapperKind kind() const override { return kind_; }
  Tensors run(const BlockRun& run, Tensors inputs, const InnerBlocks& next) override {
    calls_.push_back(
        fmt::format("{} {}-{}", kKindNames[static_cast<size_t>(kind_)], run.begin, run.end));
    return next(run, std::move(inputs));
  }

 private:
  const WrapperKind kind_;
  Calls& calls_;
};

// Blocks x + 1 and 2 x, which record that they run.
struct Wrapped {
  Wrapped() {
    model->add_block({"add", {}, {}, [this](const at::Tensor& x) {
                        calls.push_back("add");
                        return x + 1;
                      }});
    model->add_block({"double", {}, {}, [this](const at::Tensor& x) {
                        calls.push_back("double");
                        return 2 * x;
                      }});
  }
  WrapperGuard wrap(int kind) {
    return {*model, std::make_shared<Logged>(static_cast<WrapperKind>(kind), calls)};
  }
  Calls run() {
    calls.clear();
    EXPECT_EQ(model->forward(torch::tensor(3.0)).item<double>(), 8.0);
    return calls;
  }

  Calls calls;
  std::shared_ptr<Model> model = std::make_shared<Model>();
};

TEST(BlockWrapper, OrderDoesNotFollowFromWhoCameFirst) {
  std::array<int, kWrapperKinds> kinds{0, 1, 2, 3, 4};
  do {
    Wrapped net;
    std::vector<WrapperGuard> guards;
    for (const int kind : kinds) guards.push_back(net.wrap(kind));
    EXPECT_THAT(net.run(), ElementsAre("offload 0-2", "recompute 0-2", "gather 0-1", "context 0-1",
                                       "tensor 0-1", "add", "gather 1-2", "context 1-2",
                                       "tensor 1-2", "double"));
  } while (std::ranges::next_permutation(kinds).found);
}

TEST(BlockWrapper, IsTakenAwayWhileOthersStay) {
  Wrapped net;
  auto gather = net.wrap(2);
  std::optional<WrapperGuard> recompute = net.wrap(1);
  auto tensor = net.wrap(4);
  recompute.reset();
  EXPECT_THAT(net.run(),
              ElementsAre("gather 0-1", "tensor 0-1", "add", "gather 1-2", "tensor 1-2", "double"));
  const WrapperGuard moved = std::move(tensor);
  tensor.reset();
  gather.reset();
  EXPECT_THAT(net.run(), ElementsAre("tensor 0-1", "add", "tensor 1-2", "double"));
  gather = net.wrap(0);
  EXPECT_THAT(net.run(), ElementsAre("offload 0-2", "tensor 0-1", "add", "tensor 1-2", "double"));
}

TEST(BlockWrapper, ThereIsOneOfEachKind) {
  Wrapped net;
  {
    const auto gather = net.wrap(2);
    EXPECT_ERROR(net.wrap(2), ErrorKind::usage,
                 "[nn] the blocks of a model have one wrapper of each kind; got a second one of "
                 "kind gather, expected a kind that the model does not have (end the "
                 "nn::WrapperGuard of the first)");
    EXPECT_THAT(net.run(), ElementsAre("gather 0-1", "add", "gather 1-2", "double"));
    const auto recomputed = recompute(*net.model, {{0, 1}});
    EXPECT_THROW((void)recompute(*net.model, {{0, 2}}), Error);
    (void)recompute(*net.model, {});
  }
  EXPECT_THAT(net.run(), ElementsAre("add", "double"));
  const auto gather = net.wrap(2);
}

TEST(BlockWrapper, BlocksAreAddedBefore) {
  Wrapped net;
  const auto block = [](const at::Tensor& x) { return x; };
  {
    const auto gather = net.wrap(2);
    EXPECT_ERROR(net.model->add_block({"late", {}, {}, block}), ErrorKind::usage,
                 "[nn] block late was added to a model whose blocks have a wrapper (add all blocks "
                 "before recomputation, sharding and offloading)");
  }
  net.model->add_block({"late", {}, {}, block});
  EXPECT_EQ(net.model->blocks().size(), 3u);
}

TEST(BlockWrapper, RunsAsManyBlocksAsAreAskedFor) {
  Wrapped net;
  const auto offload = net.wrap(0), gather = net.wrap(2);
  const auto x = torch::tensor(3.0);
  EXPECT_EQ(net.model->forward(1, 2, {x})[0].item<double>(), 6.0);
  EXPECT_THAT(net.calls, ElementsAre("offload 1-2", "gather 1-2", "double"));
  EXPECT_THROW(net.model->forward(1, 3, {x}), CheckError);
  EXPECT_ERROR(net.model->forward(1, 2, {x, x}), ErrorKind::usage,
               "[nn] the caller of the model gives other tensors to blocks than are taken; got 2, "
               "expected x, all of them defined");
}

struct Passed {
  std::vector<at::Tensor> gradients;
  at::Tensor outputs;
};

Passed pass(Model& model, const at::Tensor& input) {
  torch::manual_seed(7);
  Passed passed;
  passed.outputs = model.forward(input);
  passed.outputs.square().mean().backward();
  for (const auto& parameter : model.parameters()) {
    passed.gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  return passed;
}

class Combinations : public testing::TestWithParam<std::string> {};

// Dropout, a tied matrix and tensors that are written to files, under every subset of wrappers.
TEST_P(Combinations, HaveTheBitsOfThePlainModel) {
  const TemporaryFolder folder;
  const ModelOptions options{.name = GetParam(),
                             .dropout = 0.2,
                             .image_size = 16,
                             .hidden_layers = 3,
                             .hidden_width = 256,
                             .vocab_size = 19,
                             .context = 64,
                             .layers = 2,
                             .heads = 2,
                             .width = 64};
  const auto model = make_model(options);
  model->to(at::kDouble);
  auto input = example_input(options, options.name == "gpt" ? 8 : 64);
  if (at::isFloatingType(input.scalar_type())) input = input.to(at::kDouble);
  const auto expected = pass(*model, input);
  const size_t blocks = model->blocks().size();
  Calls calls;
  const auto files = std::make_shared<ActivationOffload>(folder.path());
  for (const auto& plan :
       {RecomputePlan{}, recompute_plan("full", blocks), recompute_plan("selective", blocks),
        RecomputePlan{{0, blocks}}, RecomputePlan{{0, blocks - 1, {{1, blocks - 1}}}}}) {
    for (int wrapped = 0; wrapped < 8; ++wrapped) {
      WrapperGuard guards[4];
      if (wrapped & 1) guards[0] = {*model, std::make_shared<Logged>(WrapperKind::tensor, calls)};
      if (wrapped & 2) guards[1] = {*model, std::make_shared<Logged>(WrapperKind::gather, calls)};
      guards[2] = recompute(*model, plan);
      if (wrapped & 4) guards[3] = offload(*model, files);
      const auto found = pass(*model, input);
      EXPECT_TRUE(found.outputs.equal(expected.outputs)) << wrapped;
      ASSERT_EQ(found.gradients.size(), expected.gradients.size());
      for (size_t i = 0; i < found.gradients.size(); ++i) {
        EXPECT_TRUE(found.gradients[i].equal(expected.gradients[i])) << wrapped << " " << i;
      }
      EXPECT_EQ(files->bytes(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Combinations, testing::Values("mlp", "gpt"));

TEST(BlockWrapper, OffloadTakesTheInputsOfRecomputedBlocksAlone) {
  const TemporaryFolder folder;
  const auto model = std::make_shared<Model>();
  for (const char* name : {"a", "b"}) {
    model->add_block({name, {}, {}, [](const at::Tensor& x) { return x.exp().exp(); }});
  }
  constexpr int64_t kElements = kLeastOffloadedBytes / 4;
  const auto x = at::zeros({kElements}).requires_grad_().clone();  // no parameter
  const auto files = std::make_shared<ActivationOffload>(folder.path());
  const auto bytes = [&] {
    const auto outputs = model->forward(x);
    return files->bytes() / kElements / 4;
  };
  const auto offloaded = offload(*model, files);
  EXPECT_EQ(bytes(), 4);
  const auto recomputed = recompute(*model, recompute_plan("full", 2));
  EXPECT_EQ(bytes(), 2);
}

// After this, only the graph keeps the wrappers and the model's blocks alive.
TEST(BlockWrapper, AGraphOutlivesGuardsAndModel) {
  const auto x = torch::tensor(3.0).requires_grad_();
  at::Tensor y;
  Calls calls;
  {
    const auto model = std::make_shared<Model>();
    for (const char* name : {"a", "b", "c"}) {
      model->add_block({name, {}, {}, [](const at::Tensor& t) { return t.sin(); }});
    }
    const WrapperGuard gather(*model, std::make_shared<Logged>(WrapperKind::gather, calls));
    const auto recomputed = recompute(*model, {{0, 2}});
    y = model->forward(x);
  }
  calls.clear();
  y.backward();
  EXPECT_THAT(calls, ElementsAre("gather 0-1", "gather 1-2"));
  const auto again = x.detach().requires_grad_();
  again.sin().sin().sin().backward();
  EXPECT_TRUE(x.grad().equal(again.grad()));
}

TEST(BlockWrapper, APartOfTheBlocksIsRecomputedByThePlan) {
  std::vector<size_t> ran;
  const auto model = std::make_shared<Model>();
  for (size_t i = 0; i < 6; ++i) {
    model->add_block({std::to_string(i), {}, {}, [&ran, i](const at::Tensor& x) {
                        ran.push_back(i);
                        return x.sin();
                      }});
  }
  const auto recomputed = recompute(*model, {{1, 2}, {2, 4}, {5, 6}});
  const auto x = torch::tensor({3.0}).requires_grad_();
  const auto y = model->forward(1, 5, {x})[0];
  EXPECT_THAT(ran, ElementsAre(1, 2, 3, 4));
  ran.clear();
  y.backward();
  EXPECT_THAT(ran, ElementsAre(2, 3, 1));
  EXPECT_THROW(model->forward(3, 6, {x}), CheckError);
}

}  // namespace
}  // namespace troika::nn
