// FLOPs as they are counted, by hand.
#include "troika/compat/flop_counter.h"

#include <gmock/gmock.h>

#include "tests/train/waves.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/recompute.h"

namespace troika::train {
namespace {

int64_t flops_of(const std::function<void()>& work) {
  const compat::FlopCounter counter;
  work();
  return counter.flops();
}

TEST(Flops, OfProductsAreTwoForEachMultiplication) {
  const auto a = at::ones({2, 3, 4}), b = at::ones({2, 4, 5});
  EXPECT_EQ(flops_of([&] { at::matmul(a, b); }), 2 * 2 * 3 * 4 * 5);
  EXPECT_EQ(flops_of([&] { at::baddbmm(at::ones({1}), a, b); }), 2 * 2 * 3 * 4 * 5);
  EXPECT_EQ(flops_of([&] { at::linear(a, at::ones({7, 4}), at::ones({7})); }), 2 * 2 * 3 * 4 * 7);
  EXPECT_EQ(flops_of([&] { at::sin(a); }), 0);
}

TEST(Flops, OfConvolutionsCountPlacesAndGradientsThatAreAsked) {
  const auto input = at::ones({2, 4, 8, 9});
  const auto weight = at::ones({6, 2, 3, 2}).requires_grad_();  // in two groups
  at::Tensor output;
  const int64_t forward = 2 * 2 * (4 * 5) * (6 * 2 * 3 * 2);
  EXPECT_EQ(flops_of([&] { output = at::conv2d(input, weight, {}, 2, 1, 1, 2); }), forward);
  EXPECT_EQ(output.sizes(), at::IntArrayRef({2, 6, 4, 5}));
  EXPECT_EQ(flops_of([&] { output.sum().backward(); }), forward);
  const auto wide = at::ones({2, 4, 8, 9}).requires_grad_();
  EXPECT_EQ(flops_of([&] { at::conv2d(wide, weight, {}, 2, 1, 1, 2).sum().backward(); }),
            3 * forward);
  EXPECT_EQ(flops_of([&] {
              at::conv1d(at::ones({1, 1, 10}), at::ones({1, 1, 3}), {}, 1, at::IntArrayRef({0}), 4);
            }),
            2 * 2 * 3);
  const auto kernel = at::ones({4, 3, 2, 2}).requires_grad_();
  EXPECT_EQ(flops_of([&] { at::conv_transpose2d(input, kernel, {}, 2).sum().backward(); }),
            2 * 2 * (2 * 72) * (4 * 3 * 2 * 2));
}

TEST(Flops, OfABackwardPassLeaveOutWhatItRecomputes) {
  const auto task = make_waves_task(8, 0);
  const auto batch = Waves().load(std::vector<int64_t>{0, 1, 2, 3, 4}, {});
  // Linear layers of 3 to 8 and 8 to 2; nobody asks for the gradient of the input.
  const int64_t first = 2 * 5 * 3 * 8, second = 2 * 5 * 8 * 2;
  const auto step = [&] { task->training_step(batch).backward(); };
  EXPECT_EQ(flops_of(step), 2 * first + 3 * second);
  task->recompute(nn::recompute_plan("full", task->blocks().blocks().size()));
  const compat::FlopCounter counter;
  step();
  EXPECT_EQ(counter.flops(), 2 * first + 3 * second);
  EXPECT_GE(counter.recomputed(), first);
}

TEST(Flops, DoNotCountInAPause) {
  const auto a = at::ones({3, 4}), b = at::ones({4, 5}).requires_grad_();
  EXPECT_EQ(flops_of([&] {
              {
                const compat::FlopCounter::Pause pause;
                at::mm(a, b).sum().backward();
              }
              at::mm(a, b);
            }),
            2 * 3 * 4 * 5);
}

}  // namespace
}  // namespace troika::train
