// Recomputation within a budget: the memory that it uses and the blocks that it runs.
#include "troika/nn/recompute/block_costs.h"

#include <gmock/gmock.h>

#include "troika/base/memory.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/recompute.h"

namespace troika::nn {
namespace {

// Large enough that the 5 kB of random state that each checkpoint keeps do not matter.
constexpr int64_t kElements = 1 << 16;
constexpr int64_t kTensor = kElements * static_cast<int64_t>(sizeof(float));

// A block: the tensors that it saves, including its output, and its time, in units that do not
// depend on a clock.
struct Shape {
  int saves;
  double forward;
};

struct Taken {
  double forward = 0;
  int64_t peak = 0;  // beside the input
};

class Chain {
 public:
  explicit Chain(std::vector<Shape> shapes) : shapes_(std::move(shapes)) {
    compat::count_tensor_memory();
    for (size_t i = 0; i < shapes_.size(); ++i) {
      model_->add_block({std::to_string(i), {}, {}, [this, i](at::Tensor x) {
                           forward_ += shapes_[i].forward;
                           for (int k = 0; k < shapes_[i].saves; ++k) x = x.tanh();
                           return x;
                         }});
    }
  }

  Taken take(const RecomputePlan& plan) {
    const auto input = at::zeros({kElements}).requires_grad_().clone();
    const auto recomputed = recompute(*model_, plan);
    forward_ = 0;
    const int64_t before = memory::live();
    memory::restart_peak();
    model_->forward(input).sum().backward();
    return {forward_, memory::peak() - before};
  }
  Taken take(const std::string& policy) { return take(recompute_plan(policy, shapes_.size())); }
  Taken take(int64_t budget) {
    std::vector<BlockCost> costs;
    for (const Shape& shape : shapes_) {
      costs.push_back({.forward = shape.forward,
                       .backward = 2 * shape.forward,
                       .output_bytes = kTensor,
                       .saved_bytes = shape.saves * kTensor});
    }
    return take(plan_for_budget(costs, budget).plan);
  }

 private:
  const std::vector<Shape> shapes_;
  const std::shared_ptr<Model> model_ = std::make_shared<Model>();
  double forward_ = 0;
};

TEST(BudgetedRecomputation, NeverExceedsItsBudget) {
  Chain chain(std::vector<Shape>(64, {.saves = 2, .forward = 1}));
  // A running operator has one more gradient.
  constexpr int64_t kWork = 2 * kTensor;
  for (const int64_t tensors : {12, 24, 48, 96}) {
    const int64_t budget = tensors * kTensor;
    const auto taken = chain.take(budget);
    EXPECT_LE(taken.peak, budget + kWork) << tensors << " tensors";
    EXPECT_GE(taken.peak, budget * 9 / 10) << "it uses " << tensors << " tensors";
  }
}

TEST(BudgetedRecomputation, BeatsTheSquareRootInItsMemory) {
  std::vector<Shape> shapes;
  for (int i = 0; i < 64; ++i) shapes.push_back(i % 4 ? Shape{1, 3} : Shape{6, 1});
  Chain chain(shapes);
  const auto by_root = chain.take("sqrt");
  const auto by_budget = chain.take(by_root.peak - kTensor);
  EXPECT_LE(by_budget.peak, by_root.peak);
  EXPECT_LT(by_budget.forward, 0.95 * by_root.forward);
  // For equal blocks, no plan is faster than `sqrt`.
  Chain equal(std::vector<Shape>(64, {.saves = 2, .forward = 1}));
  const auto root_of_equal = equal.take("sqrt");
  EXPECT_LE(equal.take(root_of_equal.peak).forward, root_of_equal.forward);
}

}  // namespace
}  // namespace troika::nn
