// The trainer on pipelines whose stages have several replicas: ZeRO, and different numbers of them.
#include <gmock/gmock.h>

#include "tests/train/pipelined_runs.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

class PipelineReplicas : public PipelinedRuns {
 protected:
  void expect_oracle(const TrainOptions& options, int ranks, const std::string& model,
                     const PipelineCourse& oracle) {
    const auto what = fmt::format("{} on {} with zero {}", model, ranks, options.zero.stage);
    const auto course = fit(options, ranks, model);
    expect_same_course(course, oracle, what);
  }
};

TEST_F(PipelineReplicas, ShardStagesAsOneProcessThatAccumulates) {
  for (const std::string model : {"mlp", "gpt"}) {
    const auto oracle = fit(accumulating(2), 1, model);
    for (const int stage : {1, 2, 3}) {
      auto options = pipelined(stage == 2 ? "zb-v" : "1f1b", 2);
      options.mesh.pipeline = 2;
      options.zero.stage = stage;
      expect_oracle(options, 4, model, oracle);
    }
  }
}

// Norms of whole parameters, and states that a scaler and masters make.
TEST_F(PipelineReplicas, ShardWithEveryKindOfOptimizer) {
  auto alone = accumulating(2), cut = pipelined("1f1b", 2);
  cut.mesh.pipeline = 2;
  for (auto* options : {&alone, &cut}) options->optimizer.name = "lamb";
  const auto oracle = fit(alone, 1, "gpt");
  for (const int stage : {1, 3}) {
    cut.zero.stage = stage;
    expect_oracle(cut, 4, "gpt", oracle);
  }
  for (auto* options : {&alone, &cut}) {
    options->optimizer.name = "adamw";
    options->trainer.precision = "bf16-true";
  }
  const auto plain = [&] {
    auto options = cut;
    options.zero.stage = 0;
    return fit(options, 4, "mlp");
  }();
  cut.zero.stage = 2;
  const auto sharded = fit(cut, 4, "mlp");
  for (const auto& [name, tensor] : plain.state) {
    EXPECT_TRUE(sharded.state.at(name).allclose(tensor, 1e-2, 1e-2)) << name;
  }
}

// Micro-batch i is for replica i mod r of a stage. The last step of an epoch has three.
TEST_F(PipelineReplicas, ShareMicroBatchesAsOneProcessThatAccumulates) {
  for (const std::string model : {"mlp", "gpt with dropout"}) {
    const auto oracle = fit(accumulating(4), 1, model);
    for (const std::string mesh : {"pipeline=3 data=2-1-1", "pipeline=2 data=1-3"}) {
      for (const int stage : {0, 2}) {
        if (stage > 0 && model != "mlp") continue;  // the tied embedding is refused
        auto options = pipelined("1f1b", 4);
        options.mesh.axes = mesh;
        options.zero.stage = stage;
        expect_oracle(options, 4, model, oracle);
      }
    }
  }
}

// Losses, metrics and running statistics are those of all replicas.
TEST_F(PipelineReplicas, MergeRunningStatistics) {
  auto options = pipelined("gpipe", 4);
  const auto one = fit(options, 1, "resnet20");
  options.mesh.axes = "pipeline=2 data=3-1";
  const auto course = fit(options, 4, "resnet20");
  EXPECT_NEAR(course.summary.train_loss, one.summary.train_loss, 1e-10);
  EXPECT_NEAR(course.summary.validation_loss, one.summary.validation_loss, 1e-10);
  for (const auto& [name, tensor] : one.state) {
    EXPECT_TRUE(course.state.at(name).allclose(tensor, 1e-9, 1e-9)) << name;
  }
}

TEST_F(PipelineReplicas, RefuseWhatDoesNotFit) {
  const auto error_of = [](const TrainOptions& options, int ranks) -> std::string {
    try {
      const auto plan = resolve_plan(options, layout::Cluster::uniform(1, ranks));
      require_runnable(plan, ranks);
    } catch (const Error& problem) {
      return problem.what();
    }
    return "none";
  };
  auto options = pipelined("1f1b", 4);
  options.mesh = {.pipeline = 2};
  options.zero = {.stage = 2, .group_size = 2};
  EXPECT_EQ(error_of(options, 8), "none");
  EXPECT_THAT(error_of(options, 6), HasSubstr("got 2 ranks in each, expected a divisor of 3"));
  options.mesh = {.axes = "pipeline=2 data=2-1"};
  EXPECT_THAT(error_of(options, 3), HasSubstr("got 2 ranks of mesh pipeline=2 data=2-1"));
  options.mesh.pipeline = 2;
  EXPECT_THAT(error_of(options, 3), HasSubstr("mesh.axes and the sizes of axes both"));
  options = options_;
  options.zero.stage = 2;
  EXPECT_THAT(error_of(options, 2),
              HasSubstr("strategy ddp does not take zero.stage; got 2, expected 0, or the "
                        "strategy zero2"));
  options.trainer.strategy = "zero2";
  EXPECT_EQ(error_of(options, 2), "none");
  options = options_;
  options.mesh.axes = "pipeline=2";
  EXPECT_THAT(error_of(options, 2), HasSubstr("strategy ddp does not cut the model into stages"));
}

// Averages of weights, and numbers about the whole model.
class PipelineCallbacks : public PipelineReplicas {
 protected:
  // The value of a name in each row that has it.
  static std::vector<double> column(const PipelineCourse& course, const std::string& name) {
    std::vector<double> result;
    for (const auto& [step, row] : course.rows) {
      if (row.contains(name) && !row.at(name).empty()) result.push_back(std::stod(row.at(name)));
    }
    return result;
  }
};

TEST_F(PipelineCallbacks, AverageWeightsByEma) {
  auto alone = accumulating(2);
  alone.ema = {.enabled = true, .decay = 0.7, .update_every_n_steps = 2};
  const auto oracle = fit(alone, 1, "gpt");
  for (const int zero : {0, 1, 3}) {
    auto options = pipelined("1f1b", 2);
    options.mesh.pipeline = 2;
    options.zero.stage = zero;
    options.ema = alone.ema;
    expect_oracle(options, 4, "gpt", oracle);
    // The average goes on from a checkpoint, and the weights that are averaged, too.
    options.run.folder = (folder_ / fmt::format("ema-{}", zero)).string();
    options.trainer.max_steps = 5;
    fit(options, 4, "gpt");
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    expect_close(fit(options, 4, "gpt").state, oracle.state, fmt::format("resumed, {}", zero));
  }
}

TEST_F(PipelineCallbacks, LogStatisticsOfTheWholeModel) {
  for (const std::string per : {"total", "block"}) {
    auto alone = accumulating(2);
    alone.statistics = {.every_n_steps = 1, .per = per};
    const auto oracle = fit(alone, 1, "gpt");
    for (const int zero : {0, 2}) {
      auto options = pipelined("1f1b", 2);
      options.mesh.pipeline = 2;
      options.zero.stage = zero;
      options.statistics = alone.statistics;
      const auto course = fit(options, 4, "gpt");
      size_t compared = 0;
      for (const auto& [name, text] : oracle.rows.front().second) {
        if (!name.starts_with("gradient_") && !name.starts_with("weight_")) continue;
        const auto found = column(course, name), expected = column(oracle, name);
        ASSERT_EQ(found.size(), expected.size()) << name;
        for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-9) << name;
        ++compared;
      }
      EXPECT_GE(compared, per == "total" ? 8u : 30u);
    }
  }
}

TEST_F(PipelineCallbacks, CountTheWorkOfAllStages) {
  const auto work = [&](TrainOptions options, int ranks) {
    options.throughput = {.enabled = true, .available_flops = 1e12};
    const auto course = fit(options, ranks, "gpt");
    const auto flops = column(course, "throughput/flops_per_second");
    const auto tokens = column(course, "throughput/tokens_per_second");
    const auto batches = column(course, "throughput/batches_per_second");
    EXPECT_FALSE(flops.empty());
    return std::pair(flops.back() / batches.back(), tokens.back() / batches.back());
  };
  const auto [flops, tokens] = work(accumulating(2), 1);
  auto options = pipelined("1f1b", 2);
  options.mesh.pipeline = 2;
  const auto found = work(options, 4);
  EXPECT_NEAR(found.first, flops, 1e-6 * flops);
  EXPECT_NEAR(found.second, tokens, 1e-6 * tokens);
}

}  // namespace
}  // namespace troika::train
