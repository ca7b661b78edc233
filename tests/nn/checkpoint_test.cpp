#include "troika/nn/recompute/checkpoint.h"

#include <gmock/gmock.h>

#include <vector>

#include "tests/support/errors.h"
#include "troika/compat/saved_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/precision.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

using testing::ElementsAre;

// The results of one forward and backward pass.
struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> state;  // parameters and buffers
  at::Tensor drawn;               // from the random generator afterwards
};

using Forward = std::function<at::Tensor(const at::Tensor&)>;

Outcome run(Model& model, const Forward& forward, const at::Tensor& input,
            const std::string& precision) {
  torch::manual_seed(11);
  Outcome outcome;
  {
    const Autocast autocast(parse_precision(precision), at::kCPU);
    outcome.loss = forward(input).to(at::kFloat).square().mean();
  }
  outcome.loss.backward();
  for (const auto& [name, tensor] : named_parameters(model)) {
    outcome.gradients.push_back(tensor.grad());
  }
  for (const auto& [name, tensor] : named_state(model)) {
    outcome.state.push_back(tensor.detach().clone());
  }
  outcome.drawn = at::rand({8});
  return outcome;
}

void expect_equal(const Outcome& one, const Outcome& other, const std::string& name) {
  EXPECT_TRUE(one.loss.equal(other.loss)) << name;
  EXPECT_TRUE(one.drawn.equal(other.drawn)) << name;
  ASSERT_EQ(one.gradients.size(), other.gradients.size());
  for (size_t i = 0; i < one.gradients.size(); ++i) {
    EXPECT_TRUE(one.gradients[i].equal(other.gradients[i])) << name << " gradient " << i;
  }
  for (size_t i = 0; i < one.state.size(); ++i) {
    EXPECT_TRUE(one.state[i].equal(other.state[i])) << name << " state " << i;
  }
}

std::shared_ptr<Model> make(const ModelOptions& options) {
  torch::manual_seed(5);
  return make_model(options);
}

struct Case {
  std::string name;
  ModelOptions options;
  std::string precision = "32";
};

class EveryModel : public testing::TestWithParam<Case> {};

// Dropout, batch norm, autocast and a tied matrix; segments within segments.
TEST_P(EveryModel, HasTheSameBitsRecomputed) {
  const auto& [name, options, precision] = GetParam();
  torch::manual_seed(3);
  const auto input = example_input(options, 4);
  const auto plain = make(options);
  const auto expected = run(
      *plain, [&](const at::Tensor& x) { return plain->forward(x); }, input, precision);
  const size_t blocks = plain->blocks().size();
  const RecomputePlan nested{{0, blocks - 1, {{0, 2, {{1, 2}}}, {2, 3}}}};
  for (const auto& plan : {recompute_plan("full", blocks), recompute_plan("selective", blocks),
                           recompute_plan("sqrt", blocks), nested}) {
    const auto model = make(options);
    const auto recomputed = recompute(*model, plan);
    const auto forward = [&](const at::Tensor& x) { return model->forward(x); };
    expect_equal(expected, run(*model, forward, input, precision), name);
  }
}

std::vector<Case> cases() {
  return {
      Case{
          "Dropout",
          {.name = "mlp", .dropout = 0.3, .image_size = 8, .hidden_layers = 4, .hidden_width = 16}},
      Case{"BatchNorm", {.name = "resnet20", .image_size = 8}},
      Case{"Autocast", {.name = "resnet20", .image_size = 8}, "bf16-mixed"},
      Case{"TiedMatrix",
           {.name = "gpt",
            .dropout = 0.2,
            .vocab_size = 19,
            .context = 8,
            .layers = 4,
            .heads = 2,
            .width = 16}}};
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, EveryModel, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST(Checkpoint, TheReentrantWayHasTheSameBits) {
  const ModelOptions options{.name = "resnet20", .image_size = 8};
  const auto input = at::sin(at::arange(4 * 3 * 8 * 8, at::kFloat)).view({4, 3, 8, 8});
  const auto plain = make(options), model = make(options);
  const auto expected = run(
      *plain, [&](const at::Tensor& x) { return plain->forward(x); }, input, "bf16-mixed");
  const Forward forward = [&](at::Tensor x) {
    for (const auto& block : model->blocks()) {
      CheckpointOptions owned;
      for (const auto& [name, tensor] : Model::owned(block, named_buffers(*model))) {
        owned.buffers.push_back(tensor);
      }
      x = checkpoint_reentrant(block.forward, Tensors{x}, owned).front();
    }
    return x;
  };
  expect_equal(expected, run(*model, forward, input, "bf16-mixed"), "reentrant");
}

// Computes exp() three times and saves each result.
struct Counted {
  int calls = 0;
  int finished = 0;
  Forward function = [this](const at::Tensor& x) {
    ++calls;
    const auto y = x.exp().exp().exp();
    ++finished;
    return y;
  };
};

TEST(Checkpoint, StopsWhenItHasWhatItNeeds) {
  ASSERT_TRUE(compat::saved_tensor_hooks_work());
  Counted counted;
  const auto x = at::full({3}, 0.1).requires_grad_();
  const auto y = checkpoint(counted.function, x);
  EXPECT_EQ(counted.calls, 1);
  y.sum().backward();
  EXPECT_EQ(counted.calls, 2);
  EXPECT_EQ(counted.finished, 1) << "the third result is the last that is needed";
  EXPECT_TRUE(x.grad().equal(torch::autograd::grad({x.exp().exp().exp().sum()}, {x})[0]));
}

TEST(Checkpoint, IsAPlainCallWithoutGradients) {
  Counted counted;
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(counted.function, at::ones({3})).requires_grad());
  EXPECT_EQ(counted.calls, 1);
}

TEST(Checkpoint, AGraphMayBeGoneThroughTwiceAndGradientsHaveGradients) {
  Counted counted;
  const auto x = at::full({3}, 0.1, at::kDouble).requires_grad_();
  const auto derivatives = [&](const at::Tensor& y) {
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true,
                                             /*create_graph=*/true)[0];
    return std::vector<at::Tensor>{first, torch::autograd::grad({first.sum()}, {x})[0]};
  };
  const auto found = derivatives(checkpoint(counted.function, x));
  const auto expected = derivatives(x.exp().exp().exp());
  EXPECT_TRUE(found[0].equal(expected[0]));
  EXPECT_TRUE(found[1].equal(expected[1]));
}

TEST(Checkpoint, AFunctionThatDoesSomethingElseIsToldSo) {
  int calls = 0;
  const auto x = at::ones({3}).requires_grad_();
  const auto wider = checkpoint(
      [&](const at::Tensor& input) {
        return input.expand({++calls, 3}).exp().sum();
      },
      x, {.name = "block b"});
  EXPECT_ERROR(
      wider.backward(), ErrorKind::failure,
      "[nn] block b gave another result when it was recomputed: saved tensor 1 of 1; got Float "
      "[2, 3] on cpu, expected Float [1, 3] on cpu (a recomputed function must depend on "
      "nothing that changes)");
  calls = 0;
  const auto shorter = checkpoint(
      [&](const at::Tensor& input) { return ++calls == 1 ? input.exp().exp() : input.exp(); }, x,
      {.name = "block c"});
  EXPECT_ERROR(
      shorter.sum().backward(), ErrorKind::failure,
      "[nn] block c gave another result when it was recomputed: saved tensor 2 of 2; got nothing, "
      "expected Float [3] on cpu (a recomputed function must depend on nothing that "
      "changes)");
}

// The gradient of x * product(w) is the product. The matrix w changes before the backward pass, so
// the gradient shows whether the product was kept or recomputed.
void expect_kept(const std::function<at::Tensor(const at::Tensor& w)>& product, bool kept) {
  const auto w = at::eye(3);
  const auto x = at::ones({3, 3}).requires_grad_();
  const auto y = checkpoint([&](const at::Tensor& input) { return input * product(w); }, x,
                            {.keep_products = true});
  w.mul_(2);
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(kept ? at::eye(3) : product(w))) << x.grad();
}

TEST(Checkpoint, KeepsProductsAndNothingElse) {
  const auto one = at::eye(3);
  expect_kept([&](const at::Tensor& w) { return one.mm(w); }, true);
  expect_kept([&](const at::Tensor& w) { return at::linear(one, w, at::zeros({3})); }, true);
  expect_kept(
      [&](const at::Tensor& w) {
        return at::conv2d(one.view({3, 3, 1, 1}), w.view({3, 3, 1, 1})).view({3, 3});
      },
      true);
  expect_kept([&](const at::Tensor& w) { return one.unsqueeze(0).bmm(w.unsqueeze(0))[0]; }, false);
  expect_kept([&](const at::Tensor& w) { return one * w; }, false);
}

TEST(Checkpoint, MakesAgainAProductThatWasWrittenOver) {
  const auto one = at::eye(3);
  expect_kept([&](const at::Tensor& w) { return one.mm(w).neg_(); }, false);
}

TEST(Checkpoint, KeptProductsServeAGraphThatIsGoneThroughTwice) {
  const auto w = at::eye(3).requires_grad_();
  const auto product = [&](const at::Tensor& x) { return x.mm(w).relu_().mm(w).exp(); };
  const auto x = at::eye(3).requires_grad_();
  const auto expected = torch::autograd::grad({product(x).sum()}, {x, w});
  const auto y = checkpoint(product, x, {.keep_products = true}).sum();
  for (const bool again : {true, false}) {
    const auto found = torch::autograd::grad({y}, {x, w}, {}, /*retain_graph=*/again);
    EXPECT_TRUE(found[0].equal(expected[0]));
    EXPECT_TRUE(found[1].equal(expected[1]));
  }
}

}  // namespace
}  // namespace troika::nn
