// The memory of a micro-batch in a stage, against passes over its blocks one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/plan/random_chains.h"
#include "troika/plan/memory/stage_bytes.h"

namespace troika::plan {
namespace {

struct Meter {
  double live = 0, peak = 0;

  void add(double bytes) {
    live += bytes;
    peak = std::max(peak, live);
  }
  void lend(double bytes) { peak = std::max(peak, live + bytes); }
};

using Blocks = std::vector<layout::ProfiledBlock>;

double whole_pass(const Blocks& blocks, bool sends, bool makes_gradients) {
  Meter meter;
  for (const auto& block : blocks) meter.live += block.saved_bytes;
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto& block = blocks[i];
    meter.lend(sends && i + 1 == blocks.size() ? block.in_stage.sent_workspace_bytes
                                               : block.workspace_bytes);
    meter.live += (makes_gradients ? block.parameter_bytes : 0) - block.saved_bytes;
  }
  return meter.peak;
}

// Returns the peaks of both parts, and the bytes between them.
StageBytes two_parts(const Blocks& blocks) {
  Meter meter;
  double saved = 0;
  for (const auto& block : blocks) saved += block.saved_bytes;
  meter.add(saved);
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto& own = blocks[i].in_stage;
    const bool is_last = i + 1 == blocks.size();
    // The gradient of the output of the last block is a message.
    meter.lend(own.input_workspace_bytes + (is_last ? 0 : blocks[i].output_bytes));
    meter.add(own.weight_gradient_bytes + (is_last ? 0 : own.weight_output_bytes));
  }
  StageBytes result{.most_in_input_part = meter.peak};
  meter = {};
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& own = blocks[i].in_stage;
    meter.add(blocks[i].saved_bytes * own.weight_saved_share +
              (i > 0 ? own.weight_input_bytes : 0) +
              (i + 1 < blocks.size() ? own.weight_output_bytes : 0));
  }
  result.weight_kept = meter.live;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& own = blocks[i].in_stage;
    meter.lend(own.weight_workspace_bytes);
    meter.live -= blocks[i].saved_bytes * own.weight_saved_share - own.weight_gradient_bytes +
                  (i > 0 ? own.weight_input_bytes : 0);
  }
  result.most_in_weight_part = meter.peak;
  return result;
}

TEST(BytesOfStages, FollowThePasses) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Draws draws(seed);
    const auto bytes = [&](int most) { return static_cast<double>(draws.from(1, most)); };
    Blocks all(static_cast<size_t>(draws.from(1, 7)));
    std::vector<PassedBlocks> passed;
    for (auto& block : all) {
      block.saved_bytes = 10 + bytes(50);
      block.workspace_bytes = bytes(40);
      block.output_bytes = bytes(20);
      block.parameter_bytes = bytes(60);
      block.in_stage = {.sent_workspace_bytes = bytes(40),
                        .weight_workspace_bytes = bytes(60),
                        .weight_input_bytes = bytes(20),
                        .weight_output_bytes = block.output_bytes * draws.from(0, 1),
                        .weight_gradient_bytes = bytes(5)};
      // The first part takes no less than a whole pass.
      block.in_stage.input_workspace_bytes =
          std::max(block.workspace_bytes, block.in_stage.sent_workspace_bytes) + bytes(9);
      passed.push_back(keep(block));
    }
    const BytesOfStages stages(passed);
    for (size_t begin = 0; begin < all.size(); ++begin) {
      for (size_t end = begin + 1; end <= all.size(); ++end) {
        const Blocks own(all.begin() + static_cast<int64_t>(begin),
                         all.begin() + static_cast<int64_t>(end));
        for (const bool sends : {false, true}) {
          const auto of = stages.of(begin, end, sends);
          EXPECT_NEAR(of.most, whole_pass(own, sends, false), 1e-9);
          EXPECT_NEAR(of.most_at_first, whole_pass(own, sends, true), 1e-9);
          const auto parts = two_parts(own);
          EXPECT_NEAR(of.weight_kept, parts.weight_kept, 1e-9);
          EXPECT_NEAR(of.most_in_weight_part, parts.most_in_weight_part, 1e-9);
          EXPECT_NEAR(of.most_in_input_part, std::max(parts.most_in_input_part, of.weight_kept),
                      1e-9);
        }
      }
    }
  }
}

// Recomputed blocks keep their inputs and the generator's state; their activations return one
// after another.
TEST(BytesOfStages, RecomputedBlocksKeepTheirInputs) {
  Blocks two(2);
  two[0] = {.name = "first", .saved_bytes = 100, .parameter_bytes = 7, .workspace_bytes = 30};
  two[1] = {.name = "second", .saved_bytes = 200, .parameter_bytes = 8, .workspace_bytes = 10};
  for (auto& block : two) block.in_stage.recomputed_saved_bytes = 5;
  const auto both = recompute(two, 50);
  EXPECT_EQ(both.kept, 55);
  EXPECT_EQ(both.most, 50 + 100 + 200 + 10);
  const BytesOfStages stages({recompute({two.data(), 1}, 50), recompute({two.data() + 1, 1}, 40)});
  const auto each = stages.of(0, 2, false);
  EXPECT_EQ(each.kept, 50 + 5 + 40 + 5);
  EXPECT_EQ(each.most, 50 + 5 + 40 + 200 + 10);
}

}  // namespace
}  // namespace troika::plan
