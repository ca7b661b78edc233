// 8-bit AdamW against AdamW.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <map>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/optim/optimizer.h"

namespace troika::optim {
namespace {

// Returns the loss after 300 steps of a quadratic function with curvatures from 0.01 to 1 and noisy
// gradients.
double final_loss(const std::string& name) {
  torch::manual_seed(3);
  const int64_t count = 3 * 2048 + 100;
  const auto curvature = at::pow(10.0, at::linspace(-2, 0, count));
  const auto x = at::randn({count});
  const auto optimizer = make_optimizer(std::vector<at::Tensor>{x}, {.name = name, .lr = 0.03});
  for (int step = 0; step < 300; ++step) {
    optimizer->set_learning_rate(0.03 * (1 - step / 300.0));
    x.mutable_grad() = curvature * (x + 0.1 * at::randn({count}));
    optimizer->step();
  }
  return (curvature * x * x).mean().item<double>() / 2;
}

TEST(AdamW8Bit, ComesToTheLossOfAdamW) {
  const double whole = final_loss("adamw"), coded = final_loss("adamw_8bit");
  EXPECT_LT(whole, 1e-3) << "from about 0.1";
  EXPECT_LT(coded, 1.2 * whole);
  EXPECT_NE(coded, whole);
}

// Returns the gradients of a step. Their sizes span four decades within every block.
using Gradients = std::function<at::Tensor(int step)>;
constexpr int64_t kSizes = 4096;

at::Tensor four_decades() {
  const auto shuffled = (at::arange(kSizes) * 977).remainder(kSizes);
  return at::pow(10.0, shuffled * (-4.0 / kSizes)).to(at::kFloat);
}

Gradients one_outlier_in(int64_t block, bool is_random) {
  auto size = at::full({kSizes}, 3e-4);
  for (int64_t i = 17; i < kSizes; i += block) size[i] = 1;
  return [=](int) { return is_random ? size * at::randn({kSizes}) : size; };
}

// Sizes go up and down within four decades, so that every element is sometimes the largest of its
// block.
Gradients moving_sizes() {
  auto size = four_decades();
  return [=](int step) mutable {
    if (step % 10 == 0) size = (size * (0.5 * at::randn({kSizes})).exp()).clamp(1e-4, 1);
    return size * at::randn({kSizes});
  };
}

struct Steps {
  at::Tensor mean, longest;  // of each element's steps in units of the rate
};

Steps steps_of(const std::string& name, const Gradients& gradients) {
  constexpr int kSteps = 1500;
  const auto x = at::zeros({kSizes});
  const auto optimizer = make_optimizer(std::vector<at::Tensor>{x},
                                        {.name = name, .lr = 1, .weight_decay = 0, .eps = 1e-12});
  Steps result{at::zeros({kSizes}), at::zeros({kSizes})};
  for (int step = 1; step <= kSteps; ++step) {
    x.mutable_grad() = gradients(step);
    x.zero_();
    optimizer->step();
    result.mean += x.abs() / kSteps;
    result.longest = result.longest.maximum(x.abs());
  }
  return result;
}

TEST(AdamW8Bit, StepsAreNoLongerThanAdamWsOverFourDecadesInABlock) {
  const std::map<std::string, std::function<Gradients()>> cases{
      {"one outlier", [] { return one_outlier_in(2048, true); }},
      {"one constant outlier", [] { return one_outlier_in(256, false); }},
      {"four decades",
       [] { return [size = four_decades()](int) { return size * at::randn({kSizes}); }; }},
      {"four constant decades", [] { return [size = four_decades()](int) { return size; }; }},
      {"sizes that halve and double",
       [] {
         return [size = four_decades()](int step) {
           return size * (1 + 0.5 * std::sin(step / 70.0)) * at::randn({kSizes});
         };
       }},
      {"moving sizes", &moving_sizes},
  };
  for (const auto& [what, gradients] : cases) {
    torch::manual_seed(3);
    const auto whole = steps_of("adamw", gradients());
    torch::manual_seed(3);
    const auto coded = steps_of("adamw_8bit", gradients());
    const auto total = (coded.mean.sum() / whole.mean.sum()).item<double>();
    EXPECT_LT(total, 1.05) << what;
    EXPECT_GT(total, 0.95) << what;
    const auto mean = coded.mean / whole.mean, longest = coded.longest / whole.longest;
    RecordProperty(what, fmt::format("mean {:.3f}, an element's {:.3f} to {:.3f}, longest {:.3f}",
                                     total, mean.min().item<double>(), mean.max().item<double>(),
                                     longest.max().item<double>()));
    EXPECT_LT(mean.max().item<double>(), 1.5) << what;
    EXPECT_LT(longest.max().item<double>(), 1.5) << what;
  }
}

TEST(AdamW8Bit, TheNumberOfThreadsChangesNothing) {
  const auto course = [](int threads) {
    at::set_num_threads(threads);
    torch::manual_seed(3);
    const auto x = at::randn({100'000});
    const auto optimizer = make_optimizer(std::vector<at::Tensor>{x}, {.name = "adamw_8bit"});
    for (int step = 0; step < 5; ++step) {
      x.mutable_grad() = at::randn_like(x);
      optimizer->step();
    }
    at::set_num_threads(1);
    return x;
  };
  EXPECT_TRUE(course(3).equal(course(1)));
}

// Older checkpoints had blocks of 2048 elements, and another code.
TEST(AdamW8Bit, RefusesStatesInBlocksOfAnotherSize) {
  const auto optimizer =
      make_optimizer(std::vector<at::Tensor>{at::zeros({8000})}, {.name = "adamw_8bit"});
  auto state = optimizer->state();
  for (auto& [name, tensor] : state) {
    if (name.ends_with("_largest")) tensor = at::zeros({4});
  }
  EXPECT_ERROR(optimizer->load_state(state), ErrorKind::usage,
               "[optim] state 0.exp_avg_largest does not fit; got [4], expected [32]");
}

TEST(AdamW8Bit, KeepsTwoBytesAParameterAndSmallTensorsWhole) {
  const std::vector<at::Tensor> parameters{at::randn({64, 1000}), at::randn({4095})};
  const auto optimizer = make_optimizer(parameters, {.name = "adamw_8bit"});
  int64_t large_bytes = 0;
  std::vector<std::string> small;
  for (const auto& [name, tensor] : optimizer->state()) {
    if (name.starts_with("0.")) large_bytes += static_cast<int64_t>(tensor.nbytes());
    if (name.starts_with("1.")) small.push_back(name);
  }
  EXPECT_EQ(large_bytes, 2 * 64'000 + 2 * 4 * 250 + 8);  // codes, a float for each block, the count
  EXPECT_THAT(small, testing::ElementsAre("1.exp_avg", "1.exp_avg_sq", "1.step"));
}

}  // namespace
}  // namespace troika::optim
