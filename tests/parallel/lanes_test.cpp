// Two forward passes take turns: sums over a tensor axis run beside the computation of the other
// pass, and the results are those of one pass after the other.
#include "troika/parallel/tensor/lanes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/parallel/named_events.h"
#include "tests/parallel/tensor_models.h"
#include "troika/base/trace.h"
#include "troika/comm/local/local.h"
#include "troika/compat/warnings.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/parallel/tensor/axis_functions.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace troika::parallel::tensor_test {
namespace {

using testing::ElementsAre;

void on_two_ranks(const std::function<void(const comm::Group& axis)>& run) {
  comm::local::run(2, run, {.timeout = std::chrono::seconds(20)});
}

TEST(Lanes, TakeTurnsAtSums) {
  on_two_ranks([](const comm::Group& axis) {
    Lanes lanes(at::kCPU);
    for (int again = 0; again < 2; ++again) {
      std::vector<std::string> order;
      const auto pass = [&](const std::string& name, double value, int sums) {
        return [&, name, value, sums] {
          at::Tensor x = at::full({2}, value, at::kDouble);
          for (int i = 0; i < sums; ++i) {
            order.push_back(name + std::to_string(i));
            x = sum_over_axis(x, axis);
          }
          order.push_back(name + " ends");
          EXPECT_TRUE(x.equal(at::full({2}, value * (1 << sums), at::kDouble)));
        };
      };
      lanes.run(pass("a", 1, 2), pass("b", 5, 3));
      EXPECT_THAT(order, ElementsAre("a0", "b0", "a1", "b1", "a ends", "b2", "b ends"));
      order.clear();
      lanes.run(pass("a", 1, 1), pass("b", 5, 0));
      EXPECT_THAT(order, ElementsAre("a0", "b ends", "a ends"));
      order.clear();
      lanes.run(pass("a", 1, 0), pass("b", 5, 1));
      EXPECT_THAT(order, ElementsAre("a ends", "b0", "b ends"));
    }
  });
}

TEST(Lanes, HaveTheCallersState) {
  const at::NoGradGuard no_grad;
  Lanes lanes(at::kCPU);
  lanes.run([] {}, [] { at::get_num_threads(); });  // which takes the process's number
  const int before = at::get_num_threads(), threads = before + 1;
  at::set_num_threads(threads);
  bool has_gradients = true;
  std::thread::id first, second;
  lanes.run([&] { first = std::this_thread::get_id(); },
            [&] {
              second = std::this_thread::get_id();
              has_gradients = at::GradMode::is_enabled();
              EXPECT_EQ(at::get_num_threads(), threads);
            });
  at::set_num_threads(before);
  EXPECT_EQ(first, std::this_thread::get_id());
  EXPECT_NE(second, first);
  EXPECT_FALSE(has_gradients);
}

TEST(Lanes, WarnWhereTheCallerDoes) {
  std::vector<std::string> warnings;
  const compat::WarningGuard guard(
      [&](const std::string& message, const std::string&) { warnings.push_back(message); });
  Lanes lanes(at::kCPU);
  for (int again = 0; again < 2; ++again) {
    lanes.run([] { TORCH_WARN("the first moose"); }, [] { TORCH_WARN("the second moose"); });
  }
  EXPECT_THAT(warnings, ElementsAre("the first moose", "the second moose", "the first moose",
                                    "the second moose"));
}

// The other pass ends where it waits, and the lanes run again.
TEST(Lanes, AnErrorInOneEndsBoth) {
  on_two_ranks([](const comm::Group& axis) {
    Lanes lanes(at::kCPU);
    std::vector<std::string> order;
    const auto pass = [&](const std::string& name, int throws_at) {
      return [&, name, throws_at] {
        for (int i = 0; i < 3; ++i) {
          order.push_back(name + std::to_string(i));
          if (i == throws_at) throw std::runtime_error(name + " has a moose");
          sum_over_axis(at::ones({2}), axis);
        }
      };
    };
    const auto message = [&](int a_throws_at, int b_throws_at) {
      order.clear();
      try {
        lanes.run(pass("a", a_throws_at), pass("b", b_throws_at));
      } catch (const std::runtime_error& error) {
        return std::string(error.what());
      }
      return std::string("none");
    };
    EXPECT_EQ(message(1, -1), "a has a moose");
    EXPECT_THAT(order, ElementsAre("a0", "b0", "a1"));
    EXPECT_EQ(message(-1, 1), "b has a moose");
    EXPECT_THAT(order, ElementsAre("a0", "b0", "a1", "b1"));
    EXPECT_EQ(message(0, -1), "a has a moose");
    EXPECT_THAT(order, ElementsAre("a0"));
    EXPECT_EQ(message(1, 1), "a has a moose") << "the first error";
    EXPECT_EQ(message(-1, -1), "none");
  });
}

// Rank 1 joins rank 0's first sum when rank 0 has begun its second pass. So the sum runs beside
// this pass, or never ends.
TEST(Lanes, SumsRunBesideTheOtherPass) {
  std::promise<void> has_begun;
  on_two_ranks([&](const comm::Group& axis) {
    Trace trace;
    Lanes lanes(at::kCPU, &trace);
    Clock::time_point begun;
    lanes.run(
        [&] {
          if (axis.rank() == 1) {
            EXPECT_EQ(has_begun.get_future().wait_for(std::chrono::seconds(15)),
                      std::future_status::ready);
          }
          sum_over_axis(at::ones({4}), axis, &trace);
        },
        [&] {
          begun = Clock::now();
          if (axis.rank() == 0) has_begun.set_value();
          sum_over_axis(at::ones({4}), axis, &trace);
        });
    const auto sums = named_events(trace, "forward sum");
    const auto beside = named_events(trace, "beside a sum");
    ASSERT_EQ(sums.size(), 2u);
    for (const auto& sum : sums) {
      EXPECT_EQ(sum.track, "tensor axis");
      EXPECT_EQ(sum.bytes, 16);
    }
    ASSERT_EQ(beside.size(), 2u) << "the second pass, and the end of the first one";
    EXPECT_LE(beside[0].start, begun);
    EXPECT_GE(*beside[0].end, begun);
    if (axis.rank() == 0) {
      EXPECT_GT(*sums[0].end, begun);
    }
  });
}

struct Results {
  at::Tensor losses;
  std::map<std::string, at::Tensor> gradients;
};

// The backward passes follow the forward passes of two micro-batches, or each its own.
Results train(const comm::Group& axis, nn::Model& model, const TensorOptions& tensor,
              bool recomputes, bool uses_lanes) {
  const auto& options = *model.options();
  const TensorParallel parallel(model, axis, split_table(options), tensor);
  const auto recomputed =
      nn::recompute(model, nn::recompute_plan(recomputes ? "full" : "none", model.blocks().size()));
  Lanes lanes(at::kCPU, tensor.trace);
  std::vector<at::Tensor> losses(2);
  const auto draws = [](int i) {
    return nn::KeyedDraws({.seed = 3, .samples = {i * kBatch, i * kBatch + 1, i * kBatch + 2}});
  };
  const auto forward = [&](int i) {
    return [&, i] {
      const auto keyed = draws(i);
      losses.at(static_cast<size_t>(i)) = loss_of(model, batch_of(options, i));
    };
  };
  const auto backward = [&](int i) {
    const auto keyed = draws(i);
    losses.at(static_cast<size_t>(i)).backward();
  };
  if (uses_lanes) lanes.run(forward(0), forward(1));
  for (const int i : {0, 1}) {
    if (!uses_lanes) forward(i)();
    backward(i);
  }
  Results results{at::stack(losses).detach(), {}};
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    results.gradients[name] = parameter.grad();
  }
  return results;
}

TEST(Lanes, PassesOfModelsGiveTheSameBits) {
  struct Case {
    std::string model;
    int ranks;
    bool sequence, recomputes;
    int sums;  // of both passes: of the embedding, and two for each layer
  };
  for (const auto& [name, ranks, sequence, recomputes, sums] :
       {Case{"gpt", 2, false, false, 10}, Case{"llama", 2, true, false, 20},
        Case{"gpt", 4, true, true, 20}, Case{"llama", 4, false, true, 10}}) {
    // Each rank has its own, and one more for the passes one after the other.
    std::vector<std::shared_ptr<nn::Model>> models;
    for (int i = 0; i < 2 * ranks; ++i) {
      at::manual_seed(7);
      models.push_back(make(language(name, name == "gpt" ? 0.3 : 0, false)));
    }
    comm::local::run(ranks,
                     [&](const comm::Group& axis) {
                       const auto rank = static_cast<size_t>(2 * axis.rank());
                       const auto expected =
                           train(axis, *models.at(rank), {.sequence = sequence}, recomputes, false);
                       Trace trace;
                       const auto found = train(axis, *models.at(rank + 1),
                                                {.sequence = sequence, .trace = &trace}, recomputes,
                                                /*uses_lanes=*/true);
                       EXPECT_TRUE(found.losses.equal(expected.losses)) << name << " on " << ranks;
                       ASSERT_EQ(found.gradients.size(), expected.gradients.size());
                       for (const auto& [parameter, gradient] : expected.gradients) {
                         EXPECT_TRUE(found.gradients.at(parameter).equal(gradient)) << parameter;
                       }
                       const auto all = named_events(trace, "forward sum");
                       const auto in_turns = std::ranges::count_if(
                           all, [](const auto& sum) { return sum.track == "tensor axis"; });
                       EXPECT_EQ(in_turns, sums) << name << " on " << ranks;
                     },
                     {.timeout = std::chrono::seconds(20)});
  }
}

}  // namespace
}  // namespace troika::parallel::tensor_test
