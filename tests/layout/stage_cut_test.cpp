#include "troika/layout/stage_cut.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/support/errors.h"

namespace troika::layout {
namespace {

using testing::ElementsAre;

const std::vector<std::string> kResNet{"stem",     "layer1.0", "layer1.1", "layer2.0",
                                       "layer2.1", "layer3.0", "head"};

TEST(StageCut, ReadsALayoutString) {
  EXPECT_THAT(parse_cut("stem|layer1*2|layer2,layer3|head", kResNet), ElementsAre(1, 3, 6, 7));
  EXPECT_THAT(parse_cut("stem, layer1 * 1 | layer1, layer2 | layer3.0, head", kResNet),
              ElementsAre(2, 5, 7));
  EXPECT_THAT(parse_cut("stem,layer1,layer2,layer3,head", kResNet), ElementsAre(7));
}

TEST(StageCut, RepeatsLists) {
  std::vector<std::string> gpt{"embedding"};
  for (int i = 0; i < 8; ++i) gpt.push_back("block." + std::to_string(i));
  gpt.push_back("head");
  EXPECT_THAT(parse_cut("embedding,block*2|(block*3|)*2,head", gpt), ElementsAre(3, 6, 9, 10));
  EXPECT_THAT(parse_cut("embedding,(block*1)*3|((block*1|)*2block*1|)*1 block,head", gpt),
              ElementsAre(4, 5, 6, 7, 10));
}

TEST(StageCut, AllowsEmptyStages) {
  EXPECT_THAT(parse_cut("|stem,layer1||layer2,layer3,head|", kResNet), ElementsAre(0, 3, 3, 7, 7));
}

TEST(StageCut, RefusesWhatIsNotTheModel) {
  const std::string hint =
      " (blocks in the model's order, `|` between stages, `name*2` for the next two of a name)";
  const auto refused = [&](const std::string& text, const std::string& message) {
    EXPECT_ERROR(parse_cut(text, kResNet), ErrorKind::usage,
                 "[layout] the cut `" + text + "` has " + message + hint);
  };
  refused("stem|layer2|head", "a name that is not the next block's; got layer2, expected layer1.0");
  refused("stem|layer1*3|head", "more blocks of layer1 than follow; got 3, expected 2");
  refused("stem|layer1",
          "blocks that are in no stage; got 4 of 7, from layer2.0 on, expected every "
          "block in a stage");
  refused(
      "stem,layer1,layer2,layer3,head|head",
      "a name that is not the next block's; got head, expected the end, since all blocks are in "
      "stages");
  refused("stem|layer1*x", "a repetition that is not a number; got *x, expected *1 or more");
  refused("stem|layer1*0", "a repetition that is not a number; got *0, expected *1 or more");
  refused("(stem", "a `(` without `)`; got (stem, expected pairs");
  refused("stem)", "a `)` without `(`; got stem), expected pairs");
}

TEST(StageCut, WritesATextThatReadsTheSame) {
  const StageEnds ends{0, 3, 3, 7};
  EXPECT_EQ(cut_text(ends, kResNet), "|stem,layer1.0,layer1.1||layer2.0,layer2.1,layer3.0,head");
  EXPECT_EQ(parse_cut(cut_text(ends, kResNet), kResNet), ends);
  // A name that begins the next block's takes that one, too.
  const std::vector<std::string> nested{"a", "a.x", "a.x.y", "b"};
  EXPECT_EQ(cut_text({2, 4}, nested), "a*1,a.x*1|a.x.y,b");
  for (const StageEnds& some : {StageEnds{2, 4}, StageEnds{1, 2, 3, 4}, StageEnds{4}}) {
    EXPECT_EQ(parse_cut(cut_text(some, nested), nested), some);
  }
}

double largest(const std::vector<double>& costs, const StageEnds& ends) {
  double result = 0;
  size_t begin = 0;
  for (const size_t end : ends) {
    result = std::max(result, std::accumulate(costs.begin() + static_cast<int64_t>(begin),
                                              costs.begin() + static_cast<int64_t>(end), 0.0));
    begin = end;
  }
  return result;
}

// Returns the minimum over all cuts of costs[from...] into `stages` stages of the largest cost of a
// stage.
double by_trying(const std::vector<double>& costs, size_t from, int stages) {
  double sum = 0;
  if (stages == 1)
    return std::accumulate(costs.begin() + static_cast<int64_t>(from), costs.end(), sum);
  double best = std::numeric_limits<double>::infinity();
  for (size_t end = from + 1; end < costs.size(); ++end) {
    sum += costs[end - 1];
    best = std::min(best, std::max(sum, by_trying(costs, end, stages - 1)));
  }
  return best;
}

TEST(StageCut, BalancesTheStages) {
  uint64_t state = 7;
  for (int stages = 1; stages <= 4; ++stages) {
    for (int n = stages; n <= 9; ++n) {
      std::vector<double> costs;
      for (int i = 0; i < n; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        costs.push_back(static_cast<double>(state >> 60));
      }
      const auto ends = balanced_cut(costs, stages);
      ASSERT_EQ(ends.size(), static_cast<size_t>(stages));
      EXPECT_EQ(ends.back(), costs.size());
      EXPECT_TRUE(std::ranges::is_sorted(ends));
      EXPECT_EQ(std::ranges::adjacent_find(ends), ends.end()) << "an empty stage";
      EXPECT_DOUBLE_EQ(largest(costs, ends), by_trying(costs, 0, stages));
    }
  }
  EXPECT_THAT(balanced_cut({1, 1, 6, 1, 1, 1, 1}, 3), ElementsAre(2, 3, 7));
  EXPECT_THAT(balanced_cut({9, 1, 1, 1, 1}, 3), ElementsAre(1, 3, 5));
  EXPECT_THAT(balanced_cut({1, 1}, 4), ElementsAre(1, 2, 2, 2));
}

// Later stages are cheaper, so they take more blocks.
TEST(StageCut, BalancesCostsThatDependOnTheStage) {
  const auto cost = [](int stage, size_t begin, size_t end) {
    return (3 - stage) * static_cast<double>(end - begin);
  };
  EXPECT_THAT(balanced_cut(11, 3, cost), ElementsAre(2, 5, 11));
}

}  // namespace
}  // namespace troika::layout
