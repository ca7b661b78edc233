// A checkpoint is independent of the number of ranks: any number of ranks loads exactly what any
// other number saved.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/checkpoint/saved_state.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/observe/step_times.h"
#include "troika/train/engine/engine.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

constexpr int kSavedBy = 4;
constexpr int64_t kGlobalBatch = 12;  // at least 3 a rank, and 2 steps an epoch

struct Change {
  std::string before;
  std::string after;
  std::string back;
};

class Reshape : public testing::TestWithParam<Change> {
 protected:
  Reshape() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.max_epochs = 3;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.strategy = GetParam().before;
    options_.data.global_batch_size = kGlobalBatch;
    options_.optimizer.name = "adamw";
    options_.comm.bucket_megabytes = 1e-2;
  }

  // Wide enough for zero3 to release parameters between passes, with a size that no number of ranks
  // divides.
  static std::shared_ptr<Task> make_task() { return make_waves_task(2603, 0); }

  // The weights, then the optimizer's states of whole parameters.
  static std::map<std::string, at::Tensor> kept(const checkpoint::RankState& state) {
    std::map<std::string, at::Tensor> result;
    for (const auto& [name, tensor] : state.model) result["model." + name] = tensor.clone();
    for (const auto& [name, tensor] : state.rest) {
      if (name.starts_with("optimizer.")) result[name] = tensor.clone();
    }
    return result;
  }

  static void expect_same(const std::map<std::string, at::Tensor>& expected,
                          const std::map<std::string, at::Tensor>& found) {
    ASSERT_EQ(expected.size(), found.size());
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(tensor.equal(found.at(name))) << name;
    }
  }

  // Loads the checkpoint on `ranks` ranks with `strategy`, and saves the result into `folder`.
  void pass_on(const std::filesystem::path& checkpoint, const std::string& strategy, int ranks,
               const std::filesystem::path& folder) {
    auto options = options_;
    options.trainer.strategy = strategy;
    comm::local::run(ranks, [&](const comm::Group& group) {
      const auto task = make_task();
      const auto plan = resolve_plan(options, cluster_of(group));
      const comm::MeshGroups groups(group, plan.mesh);
      observe::StepTimes times;
      const auto engine = make_engine({.options = options,
                                       .plan = plan,
                                       .task = *task,
                                       .groups = groups,
                                       .steps = 6,
                                       .global_batch = kGlobalBatch,
                                       .times = times});
      engine->load(checkpoint::CheckpointReader(checkpoint, group.rank()), {})();
      checkpoint::save_checkpoint(group, folder, engine->state(/*in_step=*/false),
                                  checkpoint_metadata(options), {.epoch = 3, .step = 6});
    });
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_P(Reshape, From4RanksTo1To3AndBackTo4) {
  comm::local::run(kSavedBy, [&](const comm::Group& group) {
    const auto task = make_task();
    const Waves waves;
    Trainer(options_, group).fit(*task, waves, waves);
  });
  const auto saved = checkpoint::find_checkpoint(folder_ / "run/checkpoints", "last");
  const auto expected = kept(checkpoint::load_rank_state(saved, 0));
  // Two moments and a count of steps for each of 6 parameters, at least.
  ASSERT_GE(expected.size(), 18u);
  EXPECT_TRUE(expected.at("optimizer.state.0.weight.exp_avg").any().item<bool>());
  const std::string& after = GetParam().after;
  for (int ranks = 1; ranks < kSavedBy; ++ranks) {
    SCOPED_TRACE(ranks);
    const auto fewer = folder_ / fmt::format("on-{}", ranks);
    pass_on(saved, after, ranks, fewer);
    const auto passed_on = checkpoint::find_checkpoint(fewer, "last");
    ASSERT_EQ(checkpoint::checkpoint_ranks(passed_on), ranks);
    for (int r = 0; r < ranks; ++r)
      expect_same(expected, kept(checkpoint::load_rank_state(passed_on, r)));
    const auto back = folder_ / fmt::format("back-from-{}", ranks);
    pass_on(passed_on, GetParam().back, kSavedBy, back);
    for (int r = 0; r < kSavedBy; ++r) {
      expect_same(expected,
                  kept(checkpoint::load_rank_state(checkpoint::find_checkpoint(back, "last"), r)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, Reshape,
    testing::Values(Change{"ddp", "ddp", "ddp"}, Change{"zero1", "zero1", "zero1"},
                    Change{"zero2", "zero2", "zero2"}, Change{"zero3", "zero3", "zero3"},
                    Change{"zero3", "ddp", "zero1"}, Change{"ddp", "zero2", "zero3"},
                    Change{"zero1", "zero3", "ddp"}, Change{"ddp", "parameter_server", "zero2"}),
    [](const auto& info) { return info.param.before + info.param.after + info.param.back; });

}  // namespace
}  // namespace troika::train
