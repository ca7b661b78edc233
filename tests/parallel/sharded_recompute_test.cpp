// ZeRO stage 3 with recomputation: parameters are gathered for the recomputation, and not longer.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <ostream>

#include "tests/parallel/course.h"
#include "troika/comm/local/local.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/block_parameters.h"
#include "troika/parallel/sharded.h"

namespace troika::parallel {
namespace {

struct RecomputeCase {
  Lesson lesson;
  int ranks;
};

void PrintTo(const RecomputeCase& c, std::ostream* out) {
  *out << c.lesson.model << "_" << c.lesson.feature << "_" << c.lesson.recompute << "_" << c.ranks;
}

std::vector<RecomputeCase> recompute_table() {
  std::vector<RecomputeCase> cases;
  for (const char* model : {"mlp", "resnet20", "gpt"}) {
    for (const char* policy : {"full", "selective", "sqrt", "every_2", "nested"}) {
      for (const int ranks : {1, 2, 3, 4}) {
        if (model == std::string("resnet20") && ranks != 2) continue;
        const char* feature = ranks == 3 ? "accumulation" : "plain";
        cases.push_back({{.model = model,
                          .optimizer = "adamw",
                          .feature = feature,
                          .stage = 3,
                          .recompute = policy},
                         ranks});
      }
    }
  }
  return cases;
}

class ShardedRecompute : public testing::TestWithParam<RecomputeCase> {};

TEST_P(ShardedRecompute, OneProcessIsTheOracle) {
  const auto& [lesson, ranks] = GetParam();
  const Course oracle = train_alone(ranks, lesson);
  comm::local::run(ranks, [&, &lesson = lesson](comm::Group group) {
    expect_equal(train(group, lesson), oracle, 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(Local, ShardedRecompute, testing::ValuesIn(recompute_table()),
                         testing::PrintToStringParamName());

constexpr int64_t kWidth = 64;
constexpr size_t kBlocks = 6;

// Linear blocks. When one runs, it records how many blocks have their parameters.
std::shared_ptr<nn::Model> chain(std::vector<size_t>& whole) {
  auto model = std::make_shared<nn::Model>();
  std::vector<torch::nn::Linear> layers;
  for (size_t i = 0; i < kBlocks; ++i) layers.emplace_back(kWidth, kWidth);
  for (size_t i = 0; i < kBlocks; ++i) {
    const auto name = std::to_string(i);
    model->place(name, layers[i]);
    model->add_block({name, {name}, {}, [&whole, layers, i](const at::Tensor& x) mutable {
                        whole.push_back(static_cast<size_t>(
                            std::count_if(layers.begin(), layers.end(), [](const auto& layer) {
                              return layer->weight.storage().nbytes() > 0;
                            })));
                        return layers[i]->forward(x);
                      }});
  }
  return model;
}

// Returns the number of gathers of blocks in a step. Expects at most two gathered blocks at a time.
double gathers(const comm::Group& group, const nn::RecomputePlan& plan, size_t runs) {
  std::vector<size_t> whole;
  const auto model = chain(whole);
  Sharded sharded(*model, group, {.stage = 3, .keep_elements = 0});
  const auto optimizer = optim::make_optimizer(sharded.parameters(), {.lr = 0.01});
  const auto recomputed = nn::recompute(*model, plan);
  uint64_t before = 0;
  for (int step = 0; step < 2; ++step) {
    before = sharded.counters().bytes;
    whole.clear();
    model->forward(torch::ones({2, kWidth})).sum().backward();
    EXPECT_EQ(whole.size(), runs);
    sharded.finish_backward();
    sharded.step(*optimizer);
  }
  EXPECT_EQ(*std::max_element(whole.begin(), whole.end()), 2u);
  EXPECT_EQ(whole.front(), 2u);
  const auto block =
      static_cast<double>(4 * (kWidth * kWidth + kWidth) * (group.size() - 1)) / group.size();
  return static_cast<double>(sharded.counters().bytes - before) / block - kBlocks;
}

// The last block stays from its forward to its backward pass. A block that is recomputed by itself
// is gathered for that, and stays for its backward pass. If several are recomputed
// together, the last two stay.
TEST(Sharded, RecomputedBlocksAreGatheredTwiceOrThreeTimes) {
  comm::local::run(2, [](const comm::Group& group) {
    EXPECT_EQ(gathers(group, {}, 6), 6 + 5);
    EXPECT_EQ(gathers(group, nn::recompute_plan("full", kBlocks), 12), 6 + 5);
    EXPECT_EQ(gathers(group, {{0, 4}}, 10), 6 + 1 + 4 + 2);
    // Block 3 is gathered again with the outer blocks and with the inner ones.
    EXPECT_EQ(gathers(group, {{0, 5, {{2, 4}}}}, 13), 6 + 5 + 4);
  });
}

}  // namespace
}  // namespace troika::parallel
