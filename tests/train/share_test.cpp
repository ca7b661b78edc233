// Every rank writes its own share of a checkpoint; the shares have about equal sizes, and nothing
// is gathered.
#include "tests/train/single_batch.h"
#include "troika/checkpoint/shard.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/checkpoint/saved_state.h"
#include "tests/support/errors.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {
namespace {

constexpr int64_t kOddWidth = 26003;  // which no number of ranks divides
constexpr int64_t kParameters = (3 + 1 + 2 + 2) * kOddWidth + 2;

struct ShareCase {
  std::string strategy;
  int ranks;
};

class Shares : public testing::TestWithParam<ShareCase> {
 protected:
  Shares() {
    options_.trainer.strategy = GetParam().strategy;
    options_.data.global_batch_size = 4;
    options_.optimizer.name = "adamw";
    options_.comm.bucket_megabytes = 0.1;
  }

  bool is(const std::string& strategy) const { return GetParam().strategy == strategy; }

  // Saves after a step, so that states are not zero and zero3 has released the sharded parameters.
  void save(const comm::Group& group) {
    const auto task = make_waves_task(kOddWidth, 0);
    task->module().train();
    const auto plan = resolve_plan(options_, cluster_of(group));
    const comm::MeshGroups groups(group, plan.mesh);
    observe::StepTimes times;
    const auto engine = make_engine({.options = options_,
                                     .plan = plan,
                                     .task = *task,
                                     .groups = groups,
                                     .steps = 1,
                                     .global_batch = 4,
                                     .times = times});
    const int64_t first = 4 / group.size() * group.rank();
    train_on(*engine, times, Waves().load(std::vector<int64_t>{first, first + 1}, {}), 0);
    const auto before = group.counters().bytes;
    const auto state = engine->state(/*in_step=*/false);
    checkpoint::save_checkpoint(group, folder_.path(), state, checkpoint_metadata(options_), {});
    EXPECT_LT(group.counters().bytes - before, kParameters / 4)
        << "what ranks say of their shares is little next to one state of " << 4 * kParameters;
    int64_t held = 0;
    for (const auto& parameter : task->module().parameters()) {
      held += static_cast<int64_t>(parameter.storage().nbytes());
    }
    EXPECT_EQ(held == 0, is("zero3")) << "parameters were not gathered";
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_P(Shares, AreOfEqualSizeAndNothingIsGathered) {
  const int ranks = GetParam().ranks;
  comm::local::run(ranks, [&](const comm::Group& group) { save(group); });
  const auto index = checkpoint::read_index(checkpoint::find_checkpoint(folder_.path(), "last"));
  EXPECT_EQ(index.tensors.at("optimizer.state.0.weight.exp_avg").shape,
            (std::vector<int64_t>{kOddWidth, 3}));
  // float32: the weights, and of Adam two states.
  const double states = 8.0 * kParameters, weights = 4.0 * kParameters;
  double all = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    auto written = static_cast<double>(index.files.at(checkpoint::rank_file(rank)).bytes);
    // Buffers are rank 0's; ddp cuts no tensor.
    double expected = (is("zero3") ? states + weights : states) / ranks;
    double tolerance = 0.05;
    if (is("ddp")) {
      expected = (states + weights) / ranks;
      tolerance = 0.25;
      if (rank == 0) written += static_cast<double>(index.files.at(checkpoint::kWeightsFile).bytes);
    }
    EXPECT_NEAR(written, expected, tolerance * expected) << "rank " << rank;
    all += written;
  }
  if (!is("ddp")) all += static_cast<double>(index.files.at(checkpoint::kWeightsFile).bytes);
  EXPECT_NEAR(all, states + weights, 0.05 * (states + weights) + 8 * kOddWidth) << "and buffers";
}

// A number of elements of which the samples include every 16th.
constexpr int64_t kSampled = 1 << 18;
constexpr int kSharingRanks = 6;

// Each of the ranks `odd` differs from the others in an element that no sample includes.
class Differences : public testing::Test {
 protected:
  static at::Tensor tensor(int rank, const std::set<int>& odd) {
    auto result = at::arange(kSampled, at::kFloat);
    if (odd.contains(rank)) result[5] = -rank - 1;
    return result;
  }

  const TemporaryFolder folder_;
};

TEST_F(Differences, NoSampleSeesAreKeptForEachRank) {
  for (const std::set<int>& odd : {std::set<int>{0}, std::set<int>{2, 5}}) {
    const auto state_of = [&](int rank) {
      return checkpoint::RankState{.model = {{"w", tensor(rank, odd)}, {"same", tensor(0, {})}},
                                   .rest = {{"s", tensor(rank, odd)}}};
    };
    comm::local::run(kSharingRanks, [&](const comm::Group& group) {
      checkpoint::save_checkpoint(group, folder_.path(), state_of(group.rank()), {}, {});
    });
    const auto checkpoint = checkpoint::find_checkpoint(folder_.path(), "last");
    for (int rank = 0; rank < kSharingRanks; ++rank) {
      const auto expected = state_of(rank);
      const checkpoint::CheckpointReader saved(checkpoint, rank);
      EXPECT_TRUE(saved.read("model.w").equal(expected.model[0].second)) << rank;
      EXPECT_TRUE(saved.read("model.same").equal(expected.model[1].second)) << rank;
      EXPECT_TRUE(saved.read("s").equal(expected.rest[0].second)) << rank;
    }
    EXPECT_EQ(checkpoint::read_index(checkpoint).tensors.at("model.same").boxes.size(), 1);
  }
}

TEST_F(Differences, OfReplicasOfAShardAreAnError) {
  EXPECT_ERROR(
      comm::local::run(kSharingRanks,
                       [&](const comm::Group& group) {
                         // Two replicas of three shards.
                         const int part = group.rank() % 3;
                         const auto box = layout::Box::range(
                             "s", {3 * kSampled}, {part * kSampled, (part + 1) * kSampled});
                         const checkpoint::RankState state{
                             .model = {}, .rest = {{"s", tensor(group.rank(), {4}), box}}};
                         checkpoint::save_checkpoint(group, folder_.path(), state, {}, {});
                       }),
      ErrorKind::failure,
      "[checkpoint] the ranks' shards of a checkpoint do not fit together; got elements both in "
      "`s(786432)[0:786432]{262144:524288}` in rank-1.safetensors and in "
      "`s(786432)[0:786432]{262144:524288}` in rank-4.safetensors, expected each element once");
  EXPECT_EQ(checkpoint::find_checkpoint(folder_.path(), "last"), "");
}

INSTANTIATE_TEST_SUITE_P(Of, Shares,
                         testing::Values(ShareCase{"zero1", 2}, ShareCase{"zero1", 4},
                                         ShareCase{"zero2", 2}, ShareCase{"zero2", 4},
                                         ShareCase{"zero3", 2}, ShareCase{"zero3", 4},
                                         ShareCase{"ddp", 2}),
                         [](const auto& info) {
                           return info.param.strategy + "_" + std::to_string(info.param.ranks);
                         });

}  // namespace
}  // namespace troika::train
