// The execution of recomputation plans, and the costs of blocks.
#include "troika/nn/recompute/recompute.h"

#include <gmock/gmock.h>

#include <array>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

TEST(RecomputePlan, MustBeInOrder) {
  const auto model = make_model({.name = "mlp", .image_size = 4, .hidden_width = 2});
  EXPECT_THROW((void)recompute(*model, {{1, 2}, {0, 1}}), CheckError);
  EXPECT_THROW((void)recompute(*model, {{0, 4}}), CheckError);
  EXPECT_THROW((void)recompute(*model, {{0, 1, {{1, 2}}}}), CheckError);
}

// Counts activations in memory.
struct Alive {
  int now = 0;
  int most = 0;
};
Alive alive;

// tanh with counted memory. Its backward pass needs only its output.
struct CountedTanh : torch::autograd::Function<CountedTanh> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input) {
    auto* memory = new std::array<float, 4>;
    alive.most = std::max(alive.most, ++alive.now);
    const auto output = at::from_blob(memory->data(), {4}, [memory](void*) {
      --alive.now;
      delete memory;
    });
    output.copy_(input.tanh());
    context->save_for_backward({output});
    return output;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto output = context->get_saved_variables()[0];
    return {gradients[0] * (1 - output * output)};
  }
};

TEST(Recompute, SquareRootOfAChainKeepsTwiceItsRoot) {
  constexpr size_t kBlocks = 64;
  int forwards = 0;
  const auto model = std::make_shared<Model>();
  for (size_t i = 0; i < kBlocks; ++i) {
    model->add_block({std::to_string(i), {}, {}, [&forwards](const at::Tensor& x) {
                        ++forwards;
                        return CountedTanh::apply(x);
                      }});
  }
  const auto run = [&](const std::string& policy) {
    const auto x = at::full({4}, 0.5).requires_grad_();
    forwards = 0;
    alive.most = 0;
    const auto recomputed = recompute(*model, recompute_plan(policy, kBlocks));
    model->forward(x).sum().backward();
    EXPECT_EQ(alive.now, 0) << policy;
    return x.grad();
  };
  const auto expected = run("none");
  EXPECT_GE(alive.most, 64);
  EXPECT_EQ(forwards, 64);

  EXPECT_TRUE(run("sqrt").equal(expected));
  EXPECT_LE(alive.most, 2 * 8 + 1);
  EXPECT_EQ(forwards, 64 + 56) << "all but the last segment once more";

  EXPECT_TRUE(run("full").equal(expected));
  EXPECT_EQ(forwards, 2 * 64);
  EXPECT_TRUE(run("every_4").equal(expected));
  EXPECT_EQ(forwards, 64 + 16);
}

TEST(MeasureBlocks, CountsWhatIsSavedAndLeavesNoTrace) {
  const auto model =
      make_model({.name = "mlp", .dropout = 0.5, .image_size = 4, .hidden_width = 8});
  torch::manual_seed(1);
  const auto drawn = at::rand({4});
  torch::manual_seed(1);
  const auto costs = measure_blocks(*model, {at::ones({16, 3, 4, 4})});
  EXPECT_TRUE(at::rand({4}).equal(drawn));
  ASSERT_EQ(costs.size(), 3);
  // A layer saves the ReLU's output, the dropout's mask and its output, all [16, 8].
  EXPECT_EQ(costs[0].output_bytes, 16 * 8 * 4);
  EXPECT_EQ(costs[0].saved_bytes, 3 * 16 * 8 * 4);
  EXPECT_EQ(costs[1].saved_bytes, 3 * 16 * 8 * 4);
  EXPECT_EQ(costs[2].saved_bytes, 16 * 10 * 4);
  for (const auto& cost : costs) {
    EXPECT_GT(cost.forward, 0);
    EXPECT_GT(cost.backward, 0);
  }
  for (const auto& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

}  // namespace
}  // namespace troika::nn
