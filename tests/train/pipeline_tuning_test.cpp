// Stages and schedules of pipelines that follow from the model: by parameters, FLOPs, bytes and
// times.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "tests/train/pipelined_runs.h"
#include "troika/checkpoint/reader.h"
#include "troika/layout/plan.h"
#include "troika/train/memory/predicted_cut.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/run_group.h"
#include "troika/train/tuning/pipeline_tuning.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

// Keeps times in a folder of its own.
class PipelineTuning : public PipelinedRuns {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("XDG_CACHE_HOME")) before_ = before;
    ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  }
  void TearDown() override {
    before_ ? ::setenv("XDG_CACHE_HOME", before_->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
  }
  // The plan in the last checkpoint of a run.
  static layout::Plan plan_of(const TrainOptions& options) {
    const auto folder = std::filesystem::path(options.run.folder) / "run" / "checkpoints";
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.is_directory() || entry.is_symlink()) continue;
      return layout::Plan::parse(checkpoint::CheckpointReader(entry.path(), 0).plan(), "a plan");
    }
    return {};
  }

  std::optional<std::string> before_;
};

TEST_F(PipelineTuning, TheCutDoesNotChangeBits) {
  auto options = pipelined("1f1b", 4);
  const auto expected = fit(options, 3, "gpt");
  std::set<std::string> cuts;
  for (const std::string by : {"time", "flops", "bytes", "hand"}) {
    options.pipeline.cut_by = by == "hand" ? "parameters" : by;
    options.pipeline.cut = by == "hand" ? "embed||transformer,head" : "";
    options.run.folder = (folder_ / ("by-" + by)).string();
    const auto course = fit(options, 3, "gpt");
    cuts.insert(plan_of(options).stages.cut);
    for (const auto& [name, tensor] : expected.state) {
      EXPECT_TRUE(course.state.at(name).equal(tensor)) << name << " by " << by;
    }
    EXPECT_EQ(course.summary.validation_loss, expected.summary.validation_loss) << by;
  }
  EXPECT_GT(cuts.size(), 1u) << "all cuts are the same";
  EXPECT_FALSE(cuts.contains(""));
}

// Measured once: a second run takes the times of the first one.
TEST_F(PipelineTuning, RemembersTheTimesOfBlocks) {
  auto options = pipelined("1f1b", 4);
  options.pipeline.cut_by = "time";
  options.trainer.max_steps = 1;
  for (int run = 0; run < 2; ++run) {
    fit(options, 2, "mlp");
    const auto entries = TuningFile::of_user().read();
    ASSERT_EQ(entries.size(), 1u) << run;
    EXPECT_THAT(entries[0].question.what, testing::AllOf(HasSubstr("passes of the blocks of mlp"),
                                                         HasSubstr("attention auto")));
    EXPECT_EQ(std::ranges::count(entries[0].choice, ';'), 7) << "times of 8 blocks";
  }
  // By these times, the first block is a stage.
  auto entry = TuningFile::of_user().read().front();
  entry.choice = "90 0 0; 0 90 0; 1 1 1; 1 1 1; 1 1 1; 1 1 1; 1 1 1; 1 1 1";
  TuningFile::of_user().add(entry);
  options.run.folder = (folder_ / "known").string();
  options.trainer.max_steps = -1;
  fit(options, 2, "mlp");
  const auto cut = plan_of(options).stages.cut;
  EXPECT_EQ(std::ranges::count(cut.substr(0, cut.find('|')), ','), 0) << cut;
}

TEST_F(PipelineTuning, MakesAScheduleOfMeasuredTimes) {
  auto options = pipelined("pipeline", 6);
  options.pipeline.schedule = "auto";
  const auto oracle = fit(accumulating(6), 1, "mlp");
  for (const double limit : {0.0, 4.0}) {
    options.pipeline.activations = limit;
    options.run.folder = (folder_ / fmt::format("auto-{}", limit)).string();
    const auto course = fit(options, 2, "mlp");
    expect_close(course.state, oracle.state, fmt::format("limit {}", limit));
    const auto plan = plan_of(options);
    EXPECT_EQ(plan.schedule, layout::kCustomSchedule);
    EXPECT_THAT(plan.actions, HasSubstr("I0")) << "backward passes are split";
  }
  options.pipeline.activations = 0.1;
  options.run.folder = (folder_ / "auto-none").string();
  EXPECT_THAT([&] { fit(options, 2, "mlp"); }, testing::ThrowsMessage<Error>(HasSubstr("memory")));
}

// Even if the times have changed since.
TEST_F(PipelineTuning, AResumedRunKeepsItsSchedule) {
  auto options = pipelined("pipeline", 6);
  options.pipeline.schedule = "auto";
  options.run.folder = (folder_ / "kept").string();
  options.trainer.max_steps = 1;
  fit(options, 2, "mlp");
  const auto before = plan_of(options).actions;
  auto entry = TuningFile::of_user().read().front();
  entry.choice = "1 1 1; 1 1 900; 1 1 1; 1 1 1; 1 900 1; 1 1 1; 1 1 1; 900 1 1";
  TuningFile::of_user().add(entry);
  options.trainer.ckpt_path = "last";
  options.trainer.max_steps = 3;
  fit(options, 2, "mlp");
  EXPECT_EQ(plan_of(options).actions, before);
  options.trainer.ckpt_path.clear();
  options.run.folder = (folder_ / "new").string();
  fit(options, 2, "mlp");
  EXPECT_NE(plan_of(options).actions, before);
}

TEST(PredictedCut, BalancesFlopsAndBytes) {
  // Two large blocks, the first of which keeps few activations.
  auto model = std::make_shared<nn::Model>();
  for (const auto& [name, rows] : {std::pair("a", 1), {"b", 1}, {"c", 64}, {"d", 64}}) {
    torch::nn::Linear linear(32, 32);
    model->place(name, linear.ptr());
    model->add_block({name, {name}, {}, [linear, rows = rows](const at::Tensor& x) mutable {
                        auto y = x;
                        for (int i = 0; i < rows; ++i) y = at::tanh(linear->forward(y));
                        return y;
                      }});
  }
  const Task task(model);
  class Rows : public data::Dataset {
    int64_t size() const override { return 64; }
    data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
      const auto n = static_cast<int64_t>(indices.size());
      return {at::ones({n, 32}), at::zeros({n}, at::kLong)};
    }
    int64_t num_classes() const override { return 32; }
    std::vector<int64_t> input_shape() const override { return {32}; }
  } rows;
  TrainOptions options;
  options.trainer.strategy = "gpipe";
  const auto cut = [&](const std::string& by) {
    options.pipeline.cut_by = by;
    const auto plan = resolve_plan(options, layout::Cluster::uniform(1, 2));
    return predicted_cut(options, plan, task, rows, 64);
  };
  EXPECT_EQ(cut("flops"), "a,b,c|d");
  EXPECT_EQ(cut("bytes"), "a,b,c|d");
  EXPECT_EQ(cut("parameters"), "");
  options.pipeline.cut = "a|b,c,d";
  EXPECT_EQ(cut("flops"), "");
}

}  // namespace
}  // namespace troika::train
