#include "troika/checkpoint/writer.h"

#include <gmock/gmock.h>

#include <latch>

#include "tests/checkpoint/saved_state.h"
#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"

namespace troika::checkpoint {
namespace {

// Rank 1 starts after rank 0 has overwritten the tensors that it gave to the writer; rank 0 cannot
// publish before rank 1 is done.
TEST(CheckpointWriter, WritesWhatWasThereAtTheStart) {
  const TemporaryFolder folder;
  std::latch overwritten(1);
  comm::local::run(2, [&](const comm::Group& group) {
    CheckpointWriter writer(group);
    EXPECT_FALSE(writer.is_writing());
    for (int64_t step = 1; step <= 2; ++step) {
      const bool is_first = step == 1;
      const auto numbers = at::arange(5) + 10 * step;
      const RankState state{.model = {{"w", numbers.clone()}}, .rest = {{"s", numbers.clone()}}};
      if (is_first && group.rank() == 1) overwritten.wait();
      writer.start(folder.path(), state, {}, {.epoch = 0, .step = step});
      state.model[0].second.zero_();
      state.rest[0].second.zero_();
      EXPECT_TRUE(writer.is_writing());
      if (is_first && group.rank() == 0) {
        EXPECT_FALSE(writer.is_done()) << "it waits for rank 1, beside us";
        overwritten.count_down();
      }
      const auto written = load_rank_state(writer.finish(), group.rank());
      EXPECT_FALSE(writer.is_writing());
      EXPECT_TRUE(written.model[0].second.equal(numbers)) << written.model[0].second;
      EXPECT_TRUE(written.rest[0].second.equal(numbers)) << written.rest[0].second;
    }
  });
}

// A tensor may change its size between two checkpoints.
TEST(CheckpointWriter, TakesAnyStateAfterAnyOther) {
  const TemporaryFolder folder;
  CheckpointWriter writer(comm::local::alone());
  const std::vector<NamedTensors> states{{{"a", at::ones({2})}, {"b", at::ones({3})}},
                                         {{"b", at::ones({3}, at::kLong)}},
                                         {{"a", at::zeros({1})}, {"c", at::ones({4, 2})}}};
  for (const auto& state : states) {
    writer.start(folder.path(), {.model = state, .rest = state}, {}, {});
    const auto written = load_rank_state(writer.finish(), 0).model;
    ASSERT_EQ(written.size(), state.size());
    for (size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(written[i].first, state[i].first);
      EXPECT_TRUE(written[i].second.equal(state[i].second));
    }
  }
}

}  // namespace
}  // namespace troika::checkpoint
