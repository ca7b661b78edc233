#include "troika/nn/weight_layout.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/take_turns.h"
#include "troika/nn/timed_pass.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::SizeIs;

const ModelOptions kSmallGpt{
    .name = "gpt", .vocab_size = 7, .context = 4, .layers = 2, .heads = 1, .width = 8};

TEST(WeightLayouts, HaveNames) {
  EXPECT_EQ(parse_weight_layout("auto"), WeightLayout::in_out);
  for (const auto layout : {WeightLayout::in_out, WeightLayout::out_in}) {
    EXPECT_EQ(parse_weight_layout(weight_layout_name(layout)), layout);
  }
  EXPECT_ERROR(parse_weight_layout("in-out"), ErrorKind::usage,
               "[nn] unknown layout of weights; got in-out (did you mean in_out?)");
}

TEST(WeightLayouts, AreOfTheLinearLayersOfGptsAlone) {
  const auto model = make_model(kSmallGpt);
  const auto state = named_state(*model);
  std::vector<at::Tensor> before;
  for (const auto& entry : state) before.push_back(entry.second.detach().clone());
  for (const auto layout : {WeightLayout::out_in, WeightLayout::in_out}) {
    lay_out_weights(*model, layout);
    for (size_t i = 0; i < state.size(); ++i) {
      const auto& [name, tensor] = state[i];
      const bool is_linear = tensor.dim() == 2 && name.find(".h.") != std::string::npos;
      const bool is_turned = is_linear && layout == WeightLayout::out_in;
      EXPECT_TRUE(tensor.equal(before[i])) << name;
      EXPECT_TRUE((is_turned ? tensor.t() : tensor).is_contiguous()) << name;
      EXPECT_TRUE(tensor.is_leaf()) << name;
    }
  }
  const auto linear = make_model({.name = "mlp"});
  lay_out_weights(*linear, WeightLayout::out_in);
  for (const auto& tensor : linear->parameters()) EXPECT_TRUE(tensor.is_contiguous());
}

// The results agree up to rounding, in float64 and in a mixed precision.
TEST(WeightLayouts, ChangeNoResult) {
  for (const char* precision : {"64", "bf16-mixed"}) {
    torch::manual_seed(1);
    const auto model = make_model(kSmallGpt);
    model->to(parse_precision(precision).parameters);
    const auto input = example_input(kSmallGpt, 2);
    const auto pass = [&] {
      model->zero_grad();
      const auto output = [&] {
        const Autocast autocast(parse_precision(precision), at::kCPU);
        return model->forward(input);
      }();
      output.square().sum().backward();
      std::vector<at::Tensor> results{output.detach()};
      for (const auto& parameter : model->parameters()) results.push_back(parameter.grad().clone());
      return results;
    };
    const auto expected = pass();
    lay_out_weights(*model, WeightLayout::out_in);
    const auto found = pass();
    const double tolerance = precision == std::string("64") ? 1e-12 : 2e-2;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(found[i].allclose(expected[i], tolerance, tolerance)) << precision << " " << i;
    }
  }
}

TEST(WeightLayouts, AreTimedWithoutATrace) {
  torch::manual_seed(6);
  const at::Tensor expected = at::rand({3});
  torch::manual_seed(6);
  for (const char* precision : {"32", "bf16-mixed"}) {
    EXPECT_THAT(time_weight_layouts(/*rows=*/6, /*width=*/8, parse_precision(precision),
                                    {WeightLayout::in_out, WeightLayout::out_in}),
                ElementsAre(Gt(0), Gt(0)));
  }
  EXPECT_TRUE(at::rand({3}).equal(expected));
}

TEST(TimedPasses, LeaveNoTrace) {
  torch::manual_seed(6);
  const at::Tensor expected = at::rand({3});
  torch::manual_seed(6);
  for (const auto& options :
       {kSmallGpt, ModelOptions{.name = "resnet20"}, ModelOptions{.name = "mlp", .dropout = 0.5}}) {
    for (const char* precision : {"32", "64", "bf16-mixed", "bf16-true"}) {
      TimedPass pass(options, 2, parse_precision(precision));
      EXPECT_GT(pass.seconds(), 0) << options.name;
      EXPECT_GT(pass.seconds(at::MemoryFormat::ChannelsLast), 0) << options.name;
    }
  }
  EXPECT_TRUE(at::rand({3}).equal(expected));
}

TEST(Turns, AreTakenInRoundsOfWhichTheFirstDoesNotCount) {
  std::vector<size_t> order;
  const auto time = [&](size_t candidate) {
    order.push_back(candidate);
    return static_cast<double>(order.size());
  };
  // There is no time for a second measured round.
  EXPECT_THAT(take_turns(2, 0, time), ElementsAre(ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(order, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(take_turns(3, 1e9, time), Each(SizeIs(5)));
  EXPECT_THAT(least_of({{3, 1, 2}, {5}}), ElementsAre(1, 5));
}

TEST(Turns, EndWhenAllAgree) {
  std::vector<bool> asked;
  const auto rounds = take_turns(
      1, /*seconds=*/0, [](size_t) { return 1.0; },
      [&](bool goes_on) {
        asked.push_back(goes_on);
        return asked.size() < 3;
      });
  EXPECT_THAT(rounds[0], SizeIs(3));
  EXPECT_THAT(asked, Each(false));
}

}  // namespace
}  // namespace troika::nn
