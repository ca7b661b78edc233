#include "troika/optim/grad_scaler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/optim/optimizer.h"

namespace troika::optim {
namespace {

using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Two parameters and their optimizer.
struct Learner {
  Learner() : optimizer(make_optimizer(parameters, {.name = "adam", .lr = 0.01})) {}

  // Sets gradients as a backward pass of the scaled loss would. The last element of the second
  // gradient is `last`.
  void set_gradients(double scale, float last = 1.0F) const {
    parameters[0].mutable_grad() = at::full({2, 3}, 0.5 * scale);
    parameters[1].mutable_grad() = at::full({4}, -2.0 * scale);
    parameters[1].mutable_grad()[3] = last * static_cast<float>(scale);
  }
  std::vector<at::Tensor> bits() const {
    std::vector<at::Tensor> all;
    for (const auto& tensor : parameters) all.push_back(tensor.clone());
    for (const auto& item : optimizer->state()) all.push_back(item.second.clone());
    return all;
  }

  const std::vector<at::Tensor> parameters{at::ones({2, 3}), at::ones({4})};
  const std::unique_ptr<FlatOptimizer> optimizer;
};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

// Returns the scale after each step; 'x' is a step with an overflow.
std::vector<float> trace(GradScaler& scaler, const std::string& steps) {
  const Learner learner;
  std::vector<float> scales;
  for (const char step : steps) {
    learner.set_gradients(scaler.scale(), step == 'x' ? kInfinity : 1.0F);
    EXPECT_EQ(scaler.step(*learner.optimizer), step != 'x');
    scaler.update();
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(GradScaler, ScaleGrowsAndBacksOffAsPyTorchs) {
  GradScaler scaler({.growth_interval = 3});
  EXPECT_THAT(trace(scaler, "x...x..x..."), ElementsAre(32768, 32768, 32768, 65536, 32768, 32768,
                                                        32768, 16384, 16384, 16384, 32768));
  // Products are computed in float64 and stored in float32.
  GradScaler odd(
      {.initial_scale = 3, .growth_factor = 1.1, .backoff_factor = 0.3, .growth_interval = 1});
  const auto grown = static_cast<float>(3.0 * 1.1);
  EXPECT_THAT(trace(odd, ".x"), ElementsAre(grown, static_cast<float>(grown * 0.3)));
  // The scale never becomes infinite.
  const float most = std::ldexp(1.0F, 127);
  GradScaler top({.initial_scale = most, .growth_interval = 1});
  const Learner learner;
  learner.set_gradients(1);
  top.step(*learner.optimizer);
  top.update();
  EXPECT_EQ(top.scale(), most);
}

TEST(GradScaler, AStepWithoutOverflowIsTheUnscaledOne) {
  const Learner scaled, plain;
  GradScaler scaler;
  for (int i = 0; i < 3; ++i) {
    scaled.set_gradients(scaler.scale());
    plain.set_gradients(1);
    EXPECT_TRUE(scaler.step(*scaled.optimizer));
    scaler.update();
    plain.optimizer->step();
  }
  EXPECT_TRUE(equal(scaled.bits(), plain.bits()));
}

TEST(GradScaler, ASkippedStepLeavesEveryBit) {
  for (const float value : {kInfinity, -kInfinity, std::nanf("")}) {
    const Learner learner;
    GradScaler scaler;
    learner.set_gradients(scaler.scale());
    scaler.step(*learner.optimizer);
    scaler.update();
    const auto before = learner.bits();
    learner.set_gradients(scaler.scale(), value);
    EXPECT_FALSE(scaler.step(*learner.optimizer)) << value;
    EXPECT_TRUE(equal(learner.bits(), before)) << value;
  }
}

TEST(GradScaler, ClippingComesBetween) {
  const Learner scaled, plain;
  GradScaler scaler;
  scaled.set_gradients(scaler.scale());
  plain.set_gradients(1);
  scaler.unscale(*scaled.optimizer);
  EXPECT_EQ(torch::nn::utils::clip_grad_norm_(scaled.parameters, 1.0),
            torch::nn::utils::clip_grad_norm_(plain.parameters, 1.0));
  scaler.step(*scaled.optimizer);
  plain.optimizer->step();
  EXPECT_TRUE(equal(scaled.bits(), plain.bits()));
}

TEST(GradScaler, OneOverflowSkipsOneOfTwoOptimizers) {
  const Learner fine, broken;
  GradScaler scaler;
  fine.set_gradients(scaler.scale());
  broken.set_gradients(scaler.scale(), kInfinity);
  EXPECT_TRUE(scaler.step(*fine.optimizer));
  EXPECT_FALSE(scaler.step(*broken.optimizer));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 32768);
}

// Ranks with different gradients: an overflow on another rank skips the step here.
TEST(GradScaler, RanksAgree) {
  std::vector<bool> found_here;
  GradScaler scaler({}, [&](bool found) {
    found_here.push_back(found);
    return true;
  });
  const Learner learner;
  const auto before = learner.bits();
  learner.set_gradients(scaler.scale());
  EXPECT_FALSE(scaler.step(*learner.optimizer));
  EXPECT_TRUE(equal(learner.bits(), before));
  EXPECT_THAT(found_here, ElementsAre(false));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 32768);
}

TEST(GradScaler, ScalesTheLoss) {
  const GradScaler scaler({.initial_scale = 8});
  EXPECT_EQ(scaler.scale(torch::tensor(1.5)).item<double>(), 12);
  const auto half = scaler.scale(torch::tensor(1.5, at::kHalf));
  EXPECT_EQ(half.scalar_type(), at::kFloat);
  const auto wide = scaler.scale(torch::tensor(1.5, at::kDouble));
  EXPECT_EQ(wide.scalar_type(), at::kDouble);
}

TEST(GradScaler, RefusesAnotherOrder) {
  const Learner learner;
  GradScaler scaler;
  const auto refused = [](const auto& call, const std::string& message) {
    EXPECT_ERROR(call(), ErrorKind::usage, "[optim] " + message);
  };
  const auto update = [&] { scaler.update(); };
  const auto unscale = [&] { scaler.unscale(*learner.optimizer); };
  const auto step = [&] { scaler.step(*learner.optimizer); };
  const std::string nothing =
      "no parameter of this optimizer has a gradient (call backward() on a scaled loss before "
      "unscale() or step())";
  refused(update, "no optimizer was unscaled or stepped since the last update()");
  refused(step, nothing);
  refused(update, "no optimizer was unscaled or stepped since the last update()");
  learner.set_gradients(1);
  unscale();
  refused(unscale, "unscale() has already been called on this optimizer since the last update()");
  step();
  refused(unscale, "unscale() is being called after step()");
  refused(step, "step() has already been called since the last update()");
  update();
  learner.set_gradients(1);
  step();
}

TEST(GradScaler, RefusesOptionsThatCannotWork) {
  const auto refused = [](const GradScalerOptions& options, const std::string& message) {
    EXPECT_ERROR(GradScaler{options}, ErrorKind::usage, "[optim] " + message);
  };
  refused({.initial_scale = 0}, "initial_scale; got 0.000000, expected a finite number > 0");
  refused({.growth_factor = 1}, "growth_factor; got 1.000000, expected a number > 1");
  refused({.backoff_factor = 1}, "backoff_factor; got 1.000000, expected a number between 0 and 1");
  refused({.growth_interval = 0}, "growth_interval; got 0.000000, expected an integer >= 1");
}

TEST(GradScaler, GoesOnFromItsState) {
  GradScaler first({.initial_scale = 1024, .growth_interval = 3});
  trace(first, "x..");
  const auto state = first.state();
  std::vector<std::string> names;
  for (const auto& item : state) names.push_back(item.first);
  EXPECT_THAT(names, ElementsAre("scale", "growth_factor", "backoff_factor", "growth_interval",
                                 "_growth_tracker"));
  GradScaler second;
  second.load_state(state);
  EXPECT_THAT(trace(second, "."), ElementsAre(1024));

  EXPECT_ERROR(second.load_state({{"scale", torch::tensor(1.0)}}), ErrorKind::usage,
               "[optim] a state of the loss scaler is missing; got none, expected growth_factor");
  auto more = state;
  more.emplace_back("hysteresis", torch::tensor(1.0));
  EXPECT_ERROR(second.load_state(more), ErrorKind::usage,
               "[optim] the loss scaler has no such state; got hysteresis");
  EXPECT_EQ(second.scale(), 1024);
}

TEST(GradScaler, DisabledDoesNothing) {
  const Learner scaled, plain;
  GradScaler scaler({.enabled = false});
  for (const auto* learner : {&scaled, &plain}) learner->set_gradients(1);
  const auto loss = torch::tensor(1.5);
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  scaler.unscale(*scaled.optimizer);
  EXPECT_TRUE(scaler.step(*scaled.optimizer));
  scaler.update();
  plain.optimizer->step();
  EXPECT_TRUE(equal(scaled.bits(), plain.bits()));
  EXPECT_TRUE(scaler.state().empty());
}

}  // namespace
}  // namespace troika::optim
