// The cross entropy of an output layer without its logits, against the whole computation.
#include "troika/nn/linear_cross_entropy.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/autocast.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

constexpr int64_t kIgnored = -100;

// Rows for several parts, the last of which is shorter.
struct TokenRows {
  int64_t classes = 17'000;
  int64_t rows = 600;
  int64_t width = 5;
  at::Tensor hidden, weight, targets;

  explicit TokenRows(at::ScalarType type = at::kDouble) {
    torch::manual_seed(7);
    hidden = at::randn({2, rows / 2, width}, at::kDouble).to(type).set_requires_grad(true);
    weight = at::randn({classes, width}, at::kDouble).to(type).set_requires_grad(true);
    targets = at::randint(classes, {2, rows / 2}, at::kLong);
    targets.select(1, 3).fill_(kIgnored);
  }
};

struct LossGradients {
  at::Tensor loss, hidden, weight;
};

at::Tensor whole_loss(const TokenRows& at) {
  const at::Tensor logits = at::linear(at.hidden, at.weight).flatten(0, -2);
  return at::cross_entropy_loss(logits.to(at::promote_types(logits.scalar_type(), at::kFloat)),
                                at.targets.flatten(), {}, at::Reduction::Mean, kIgnored);
}

at::Tensor loss_by_parts(const TokenRows& at) {
  return linear_cross_entropy(at.hidden, at.weight, at.targets, kIgnored);
}

LossGradients gradients_of(const TokenRows& at, const at::Tensor& loss, double factor = 1) {
  auto found = torch::autograd::grad({loss * factor}, {at.hidden, at.weight});
  return {loss.detach(), found[0], found[1]};
}

double difference(const at::Tensor& one, const at::Tensor& other) {
  return (one.to(at::kDouble) - other.to(at::kDouble)).abs().max().item<double>();
}

// Returns the norm of the difference divided by the norm of the exact tensor.
double relative(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor exact = other.to(at::kDouble);
  return ((one.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

TEST(LinearCrossEntropy, EqualsTheWholeComputation) {
  const TokenRows one;
  ASSERT_LT(2 * linear_cross_entropy_rows(one.classes), one.rows);
  ASSERT_NE(one.rows % linear_cross_entropy_rows(one.classes), 0);
  for (const double factor : {1.0, 0.25}) {
    const auto parts = gradients_of(one, loss_by_parts(one), factor);
    const auto whole = gradients_of(one, whole_loss(one), factor);
    EXPECT_LT(difference(parts.loss, whole.loss), 1e-12);
    EXPECT_LT(difference(parts.hidden, whole.hidden), 1e-12);
    EXPECT_LT(difference(parts.weight, whole.weight), 1e-12);
    EXPECT_EQ(parts.hidden.sizes(), one.hidden.sizes());
  }
}

// PyTorch's label smoothing, and PaLM's z-loss, from their definitions.
at::Tensor defined_loss(const TokenRows& at, const LossTerms& terms) {
  const at::Tensor logits = at::linear(at.hidden, at.weight).flatten(0, -2);
  const at::Tensor targets = at.targets.flatten(), counted = targets.ne(kIgnored);
  const at::Tensor sums = logits.exp().sum(1).log();
  const at::Tensor of_target = logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor rows = (1 - terms.label_smoothing) * (sums - of_target) +
                          terms.label_smoothing * (sums - logits.mean(1)) +
                          terms.z_loss * sums.square();
  return rows.masked_select(counted).mean();
}

TEST(LinearCrossEntropy, WithTermsEqualsItsDefinition) {
  const TokenRows one;
  for (const LossTerms& terms :
       {LossTerms{0.1, 0}, LossTerms{0, 1e-2}, LossTerms{0.3, 1e-2}, LossTerms{1, 0}}) {
    SCOPED_TRACE(terms.label_smoothing);
    const auto expected = gradients_of(one, defined_loss(one, terms));
    const auto logits = at::linear(one.hidden, one.weight);
    const OutputLoss asked{.targets = one.targets, .terms = terms};
    for (const auto& loss :
         {linear_cross_entropy(one.hidden, one.weight, one.targets, kIgnored, terms),
          cross_entropy(logits, asked),
          OutputLayer(std::make_shared<OutputLoss>(asked))(one.hidden, one.weight).front()}) {
      const auto found = gradients_of(one, loss);
      EXPECT_LT(difference(found.loss, expected.loss), 1e-10);
      EXPECT_LT(difference(found.hidden, expected.hidden), 1e-10);
      EXPECT_LT(difference(found.weight, expected.weight), 1e-10);
    }
    const at::NoGradGuard no_grad;
    const auto alone = linear_cross_entropy(one.hidden, one.weight, one.targets, kIgnored, terms);
    EXPECT_LT(difference(alone, expected.loss), 1e-10);
    auto each = asked;
    each.kind = OutputLoss::Kind::each;
    const auto plain = at::cross_entropy_loss(logits.flatten(0, -2), one.targets.flatten(), {},
                                              at::Reduction::None, kIgnored);
    EXPECT_LT(difference(cross_entropy(logits, each), plain), 1e-12);
    const auto rows = OutputLayer(std::make_shared<OutputLoss>(each))(one.hidden, one.weight);
    EXPECT_LT(difference(rows[0], plain), 1e-12);
  }
}

TEST(LinearCrossEntropy, KernelsRoundAsLibTorchDoes) {
  const TokenRows exact;
  const auto reference = gradients_of(exact, whole_loss(exact));
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    TokenRows one(type);
    const auto parts = gradients_of(one, loss_by_parts(one));
    const auto whole = gradients_of(one, whole_loss(one));
    EXPECT_EQ(parts.loss.scalar_type(), at::kFloat);
    EXPECT_EQ(parts.weight.scalar_type(), type);
    EXPECT_LT(relative(parts.loss, reference.loss),
              1.1 * relative(whole.loss, reference.loss) + 1e-6);
    EXPECT_LT(relative(parts.hidden, reference.hidden),
              1.1 * relative(whole.hidden, reference.hidden) + 1e-6);
    EXPECT_LT(relative(parts.weight, reference.weight),
              1.1 * relative(whole.weight, reference.weight) + 1e-6);
  }
}

TEST(LinearCrossEntropy, UnderAutocastProductsAreShortAndGradientsAreTheParameters) {
  const TokenRows one(at::kFloat);
  const compat::AutocastGuard autocast(at::kCPU, {true, at::kBFloat16});
  const auto parts = gradients_of(one, loss_by_parts(one));
  const auto whole = gradients_of(one, whole_loss(one));
  EXPECT_EQ(parts.hidden.scalar_type(), at::kFloat);
  EXPECT_EQ(parts.weight.scalar_type(), at::kFloat);
  EXPECT_LT(relative(parts.loss, whole.loss), 1e-4);
  EXPECT_LT(relative(parts.hidden, whole.hidden), 1e-2);
  EXPECT_LT(relative(parts.weight, whole.weight), 1e-2);
  // float32 would be much closer to float64.
  const TokenRows exact;
  EXPECT_GT(relative(parts.hidden, gradients_of(exact, whole_loss(exact)).hidden), 1e-3);
}

TEST(LinearCrossEntropy, LeavesFloat16WithItsScaledLossAlone) {
  EXPECT_TRUE(takes_linear_cross_entropy(at::ones({1, 1})));
  EXPECT_TRUE(takes_linear_cross_entropy(at::ones({1, 1}, at::kDouble)));
  EXPECT_FALSE(takes_linear_cross_entropy(at::ones({1, 1}, at::kHalf)));
}

TEST(LinearCrossEntropy, MakesGradientsOfWhatIsTrainedAlone) {
  TokenRows one;
  const auto whole = gradients_of(one, whole_loss(one));
  const auto frozen = linear_cross_entropy(one.hidden, one.weight.detach(), one.targets, kIgnored);
  EXPECT_LT(difference(torch::autograd::grad({frozen}, {one.hidden})[0], whole.hidden), 1e-12);
  const auto first = linear_cross_entropy(one.hidden.detach(), one.weight, one.targets, kIgnored);
  EXPECT_LT(difference(torch::autograd::grad({first}, {one.weight})[0], whole.weight), 1e-12);
  const at::NoGradGuard no_grad;
  const auto alone = loss_by_parts(one);
  EXPECT_FALSE(alone.requires_grad());
  EXPECT_LT(difference(alone, whole.loss), 1e-12);
}

TEST(LinearCrossEntropy, OfIgnoredTargetsAloneIsNoNumberAndHasNoGradient) {
  TokenRows one;
  one.targets.fill_(kIgnored);
  for (const auto type : {at::kDouble, at::kFloat}) {
    one.hidden = one.hidden.detach().to(type).set_requires_grad(true);
    one.weight = one.weight.detach().to(type).set_requires_grad(true);
    const auto parts = gradients_of(one, loss_by_parts(one));
    EXPECT_TRUE(std::isnan(parts.loss.item<double>()));
    EXPECT_EQ(parts.hidden.abs().max().item<double>(), 0);
    EXPECT_EQ(parts.weight.abs().max().item<double>(), 0);
  }
}

TEST(LinearCrossEntropy, RowsHaveTheirOwnLossesAndPredictions) {
  const TokenRows one;
  const auto rows = linear_cross_entropy_of_rows(one.hidden, one.weight, one.targets, kIgnored);
  const at::NoGradGuard no_grad;
  const at::Tensor logits = at::linear(one.hidden, one.weight).flatten(0, -2);
  const auto losses =
      at::cross_entropy_loss(logits, one.targets.flatten(), {}, at::Reduction::None, kIgnored);
  EXPECT_LT(difference(rows.losses, losses), 1e-12);
  EXPECT_TRUE(rows.predictions.equal(logits.argmax(1)));
}

TEST(LinearCrossEntropy, HasThreeProducts) {
  const TokenRows one;
  const compat::FlopCounter counter;
  gradients_of(one, loss_by_parts(one));
  EXPECT_EQ(counter.flops(), 3 * 2 * one.rows * one.width * one.classes);
}

TEST(LinearCrossEntropy, LogitsAreNeverWhole) {
  compat::count_tensor_memory();
  const TokenRows one(at::kFloat);
  const int64_t before = memory::live();
  memory::restart_peak();
  gradients_of(one, loss_by_parts(one));
  const int64_t logits = one.rows * one.classes * 4;
  EXPECT_LT(memory::peak() - before, logits / 2);
  gradients_of(one, whole_loss(one));
  EXPECT_GT(memory::peak() - before, 2 * logits);
}

TEST(LinearCrossEntropy, RefusesWhatLibTorchRefuses) {
  TokenRows one;
  const auto message = [&](const at::Tensor& targets) -> std::string {
    try {
      linear_cross_entropy(one.hidden, one.weight, targets, kIgnored);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return {};
  };
  at::Tensor targets = one.targets.clone();
  targets[1][7] = one.classes;
  EXPECT_EQ(message(targets), "Target 17000 is out of bounds.");
  targets[1][7] = -1;
  EXPECT_EQ(message(targets), "Target -1 is out of bounds.");
  EXPECT_EQ(message(one.targets.slice(1, 0, 2)),
            "Expected input batch_size (600) to match target batch_size (4).");
}

TEST(LinearCrossEntropy, AGraphIsGoneThroughOnce) {
  const TokenRows one;
  const auto loss = loss_by_parts(one);
  torch::autograd::grad({loss * 0.5}, {one.hidden, one.weight}, {}, /*retain_graph=*/true);
  EXPECT_THROW(torch::autograd::grad({loss}, {one.hidden, one.weight}), c10::Error);
}

// As in a backward pass that schedules split.
TEST(LinearCrossEntropy, AGraphIsGoneThroughForOneGradientAfterTheOther) {
  const TokenRows one;
  const auto whole = torch::autograd::grad({loss_by_parts(one) * 0.5}, {one.hidden, one.weight});
  const auto loss = loss_by_parts(one) * 0.5;
  const auto of_hidden = torch::autograd::grad({loss}, {one.hidden}, {}, /*retain_graph=*/true);
  const auto of_weight = torch::autograd::grad({loss}, {one.weight});
  EXPECT_TRUE(of_hidden[0].equal(whole[0]));
  EXPECT_TRUE(of_weight[0].equal(whole[1]));
}

// A GPT whose output matrix is the embedding.
class GptLoss : public testing::Test {
 protected:
  static std::shared_ptr<Model> make() {
    torch::manual_seed(3);
    const auto model = make_model(
        {.name = "gpt", .vocab_size = 17'000, .context = 150, .layers = 2, .heads = 2, .width = 4});
    model->to(at::kDouble);
    return model;
  }

  template <typename Forward>
  std::vector<at::Tensor> gradients(const Forward& forward, bool asks) {
    model_->zero_grad(/*set_to_none=*/true);
    const auto outputs = only(forward({tokens_}, asks ? asked_ : nullptr));
    const auto loss =
        asks ? outputs : at::cross_entropy_loss(outputs.flatten(0, -2), targets_.flatten());
    loss.backward();
    std::vector<at::Tensor> found{loss.detach()};
    for (const auto& parameter : model_->parameters()) found.push_back(parameter.grad().clone());
    return found;
  }

  const std::shared_ptr<Model> model_ = make();
  const at::Tensor tokens_ = at::randint(17'000, {4, 150}, at::kLong);
  const at::Tensor targets_ = at::randint(17'000, {4, 150}, at::kLong);
  const std::shared_ptr<const OutputLoss> asked_ =
      std::make_shared<OutputLoss>(OutputLoss{.targets = targets_});
};

TEST_F(GptLoss, HasTheGradientsOfLogitsAlsoWhereBlocksAreRecomputed) {
  const auto direct = [&](const Tensors& tokens, const std::shared_ptr<const OutputLoss>& loss) {
    return model_->forward(tokens, loss);
  };
  const auto whole = gradients(direct, /*asks=*/false);
  const auto compare = [&](const std::vector<at::Tensor>& found) {
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_LT(difference(found[i], whole[i]), 1e-12) << i;
  };
  compare(gradients(direct, /*asks=*/true));
  for (const char* policy : {"full", "selective", "sqrt"}) {
    const auto recomputed = recompute(*model_, recompute_plan(policy, model_->blocks().size()));
    compare(gradients(direct, /*asks=*/true));
  }
  // The last three blocks together, so that the output layer is part of the recomputation.
  const auto together = recompute(*model_, {{.begin = 1, .end = 4}});
  compare(gradients(direct, /*asks=*/true));
}

TEST_F(GptLoss, OfSingleTargetsComesWithPredictions) {
  const at::NoGradGuard no_grad;
  const auto each =
      std::make_shared<OutputLoss>(OutputLoss{.targets = targets_, .kind = OutputLoss::Kind::each});
  const auto found = model_->forward({tokens_}, each);
  ASSERT_EQ(found.size(), each->gives().size());
  const auto logits = model_->forward(tokens_);
  EXPECT_LT(difference(found[0], cross_entropy(logits, *each)), 1e-12);
  EXPECT_TRUE(found[1].equal(logits.flatten(0, -2).argmax(-1)));
}

TEST_F(GptLoss, IsGivenByTheModelThatIsAskedAlone) {
  Model outer;
  outer.add_block({"gpt", {}, {}, [&](const at::Tensor& x) { return model_->forward(x); }});
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(outer.has_output_layer());
  EXPECT_EQ(outer.forward(tokens_).sizes(), at::IntArrayRef({4, 150, 17'000}));
  try {
    outer.forward({tokens_}, asked_);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "[nn] the model has no output layer that computes a loss; got a last block without "
              "an output "
              "layer, expected a last block whose forward takes an nn::OutputLayer");
  }
}

TEST_F(GptLoss, OfFloat16IsThatOfLogits) {
  const at::Tensor hidden = at::ones({1, 2, 4}, at::kHalf), weight = at::ones({3, 4}, at::kHalf);
  for (const auto kind : {OutputLoss::Kind::mean, OutputLoss::Kind::each}) {
    const auto loss = std::make_shared<OutputLoss>(
        OutputLoss{.targets = at::tensor({1, 2}).view({1, 2}), .kind = kind});
    try {
      const auto found = OutputLayer(loss)(hidden, weight);
      ASSERT_EQ(found.size(), loss->gives().size());
      EXPECT_EQ(found[0].scalar_type(), at::kFloat);
      EXPECT_LT((found[0] - std::log(3.0)).abs().max().item<double>(), 1e-6);
    } catch (const c10::Error&) {
      // LibTorch 1.13 has no such product on the CPU.
    }
  }
}

}  // namespace
}  // namespace troika::nn
