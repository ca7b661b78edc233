// Tensors without memory: they count as many bytes as tensors with memory, and use none.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "troika/base/machine_memory.h"
#include "troika/base/memory.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

// Bytes of tensors, as the allocator counts them.
struct Course {
  int64_t model = 0, forward = 0, forward_peak = 0, backward = 0, backward_peak = 0;
};

Course course_of(const ModelOptions& options, bool fake) {
  compat::count_tensor_memory();
  const auto inputs = example_inputs(options, 2);
  std::optional<compat::FakeTensorGuard> guard;
  if (fake) guard.emplace();
  const int64_t before = memory::live();
  const auto model = make_model(options);
  Course course{.model = memory::live() - before};
  memory::restart_peak();
  const auto loss = [&] {
    const auto output = only(model->forward(inputs));
    const auto targets = at::zeros({output.numel() / output.size(-1)}, at::kLong);
    return at::cross_entropy_loss(output.flatten(0, -2), targets);
  }();
  course.forward = memory::live() - before;
  course.forward_peak = memory::peak() - before;
  memory::restart_peak();
  loss.backward();
  course.backward = memory::live() - before;
  course.backward_peak = memory::peak() - before;
  return course;
}

TEST(FakeTensors, TakeWhatTensorsWithMemoryDo) {
  for (const char* name :
       {"mlp", "resnet20", "resnet50_cifar", "vgg11_bn_cifar", "unet", "gpt", "s2vt"}) {
    ModelOptions options{.name = name, .base_width = 16, .width = 192};
    const auto real = course_of(options, false), fake = course_of(options, true);
    for (const auto number : {&Course::model, &Course::forward, &Course::forward_peak,
                              &Course::backward, &Course::backward_peak}) {
      // malloc() rounds up to pages.
      EXPECT_NEAR(static_cast<double>(fake.*number), static_cast<double>(real.*number),
                  0.01 * static_cast<double>(real.*number))
          << name;
    }
  }
}

TEST(FakeTensors, HaveNoMemory) {
  const int64_t live = memory::live(), resident = memory::resident();
  const auto course =
      course_of({.name = "gpt", .context = 2048, .layers = 96, .heads = 96, .width = 12288}, true);
  EXPECT_GT(course.backward_peak, int64_t{1'200} << 30);
  EXPECT_LT(memory::resident() - resident, int64_t{200} << 20);
  EXPECT_EQ(memory::live(), live);
}

TEST(FakeTensors, AreZerosAndOthersAreAsEver) {
  at::Tensor sum;
  {
    const compat::FakeTensorGuard guard;
    const auto index = at::ones({3}, at::kLong);
    sum = at::ones({1 << 20}).cumsum(0);
    EXPECT_EQ(sum.sizes(), at::IntArrayRef({1 << 20}));
    EXPECT_EQ(index.sum().item<int64_t>(), 0);
  }
  EXPECT_EQ(sum.max().item<float>(), 0);
  EXPECT_EQ(at::ones({1 << 20}).sum().item<float>(), 1 << 20) << "after the guard";
}

TEST(FakeTensors, WrongShapesAreRefusedAsEver) {
  const compat::FakeTensorGuard guard;
  EXPECT_THROW(at::mm(at::ones({2, 3}), at::ones({2, 3})), c10::Error);
  EXPECT_THROW(at::ones({2}) + at::ones({3}), c10::Error);
  EXPECT_THROW(at::conv2d(at::ones({1, 3, 8, 8}), at::ones({2, 4, 3, 3})), c10::Error);
}

// Blocks of equal work cost alike, whatever their memory.
TEST(FakeTensors, BlocksAreEstimatedWithoutTimes) {
  const compat::FakeTensorGuard guard;
  const ModelOptions options{.name = "gpt", .layers = 3};
  const auto costs = estimate_blocks(*make_model(options), {example_input(options, 2)});
  ASSERT_EQ(costs.size(), 5u);
  EXPECT_EQ(costs[1].forward, costs[2].forward);
  EXPECT_EQ(costs[1].saved_bytes, costs[3].saved_bytes);
  EXPECT_GT(costs[1].backward, costs[1].forward);
  EXPECT_GT(costs[1].forward, costs[0].forward);
}

}  // namespace
}  // namespace troika::nn
