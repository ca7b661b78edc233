// The trainer on pipelines, compared with one process that accumulates the same micro-batches.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>

#include "tests/train/pipelined_runs.h"
#include "troika/compat/tensor_memory.h"
#include "troika/layout/recompute.h"
#include "troika/layout/schedules/table.h"
#include "troika/observe/report/timeline.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/run_group.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

class PipelineRun : public PipelinedRuns {};

// The last step of an epoch has 3 micro-batches.
TEST_F(PipelineRun, TrainsAsOneProcessThatAccumulates) {
  for (const std::string model : {"mlp", "gpt", "resnet20"}) {
    auto alone = accumulating(4);
    const auto oracle = fit(alone, 1, model);
    ASSERT_EQ(oracle.summary.steps, 6);
    for (const int ranks : {1, 2, 4}) {
      for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
        // All models run with one schedule, and one model with all schedules.
        if (model != "mlp" && ranks != 2 && schedule != "zb-v") continue;
        const auto what = fmt::format("{} with {} on {}", model, schedule, ranks);
        const auto course = fit(pipelined(schedule, 4), ranks, model);
        EXPECT_EQ(course.summary.steps, oracle.summary.steps) << what;
        EXPECT_EQ(course.summary.samples, oracle.summary.samples) << what;
        EXPECT_NEAR(course.summary.train_loss, oracle.summary.train_loss, 1e-10) << what;
        expect_close(course.state, oracle.state, what);
        if (model == "resnet20") continue;  // validated with other running statistics
        EXPECT_NEAR(course.summary.validation_loss, oracle.summary.validation_loss, 1e-10) << what;
        EXPECT_EQ(course.summary.validation_accuracy, oracle.summary.validation_accuracy) << what;
        EXPECT_EQ(course.rows.size(), oracle.rows.size()) << what;
      }
    }
  }
}

TEST_F(PipelineRun, AveragesReplicasAlongTheDataAxis) {
  for (const std::string model : {"mlp", "gpt"}) {
    const auto oracle = fit(accumulating(2), 1, model);
    auto options = pipelined("pipeline", 2);
    options.mesh.pipeline = 2;
    const auto course = fit(options, 4, model);
    expect_close(course.state, oracle.state, model);
    EXPECT_NEAR(course.summary.validation_loss, oracle.summary.validation_loss, 1e-10);
    EXPECT_NEAR(course.summary.train_loss, oracle.summary.train_loss, 1e-10);
  }
}

TEST_F(PipelineRun, RecomputesAndStepsByNormsOfParameters) {
  auto alone = accumulating(4), cut = pipelined("1f1b", 4);
  for (auto* options : {&alone, &cut}) options->trainer.recompute = "full";
  expect_close(fit(cut, 2, "gpt").state, fit(alone, 1, "gpt").state, "recomputed");
  // Norms of whole parameters, which one rank has.
  for (auto* options : {&alone, &cut}) {
    options->trainer.recompute = "none";
    options->optimizer.name = "lamb";
  }
  expect_close(fit(cut, 2, "gpt").state, fit(alone, 1, "gpt").state, "lamb");
}

class SeesRecomputation : public Callback {
 public:
  std::string name() const override { return "sees_recomputation"; }
  void on_fit_start(FitContext& context) override { policies = context.training.plan->recompute; }

  std::string policies;
};

// Under 1F1B the first rank keeps more micro-batches than the second one.
TEST_F(PipelineRun, RecomputesInTheStagesThatABudgetIsTooSmallFor) {
  compat::count_tensor_memory();
  auto options = pipelined("1f1b", 4);
  options.model = sizes_of("gpt");
  const SizedSamples samples(options.model);
  std::vector<double> kept;
  double least = 0;  // of the first rank
  {
    MemoryPredictor predictor(options, samples);
    auto choice = predictor.configured(2);
    for (const auto& rank : predictor.predict_ranks(choice)) kept.push_back(rank.activation_peak);
    choice.recompute = "sqrt";
    least = predictor.predict_ranks(choice).front().activation_peak;
    choice.recompute = "budget:1GiB";
    EXPECT_EQ(predictor.recompute_of_stages(choice), "none");
    choice.recompute = "full|none";
    EXPECT_EQ(predictor.recompute_of_stages(choice), "full|none");
  }
  const double budget = std::max(kept[1], (least + kept[0]) / 2);
  ASSERT_GT(kept[0], budget);
  options.trainer.recompute = fmt::format("budget:{}", static_cast<int64_t>(budget));
  std::vector<std::shared_ptr<SeesRecomputation>> seen(2);
  for (auto& one : seen) one = std::make_shared<SeesRecomputation>();
  std::atomic<size_t> next = 0;
  const auto course =
      fit(options, 2, "gpt", [&](Trainer& trainer, Task&) { trainer.add(seen[next++]); });
  const auto policies = layout::recompute_policies(seen[0]->policies, 2);
  EXPECT_NE(policies[0], "none");
  EXPECT_EQ(policies[1], "none");
  EXPECT_EQ(seen[1]->policies, seen[0]->policies);
  expect_close(course.state, fit(accumulating(4), 1, "gpt").state, seen[0]->policies);
}

// The batch of one process is that of all replicas of a micro-batch.
TEST_F(PipelineRun, NormalisesByTheBatchesOfAllReplicas) {
  const auto oracle = fit(accumulating(2), 1, "resnet20");
  for (const auto& [schedule, recompute] :
       {std::pair("1f1b", "full"), std::pair("zb-h1", "none")}) {
    auto options = pipelined(schedule, 2);
    options.mesh.pipeline = 2;
    options.trainer.sync_batchnorm = true;
    options.trainer.recompute = recompute;
    const auto course = fit(options, 4, "resnet20");
    EXPECT_NEAR(course.summary.train_loss, oracle.summary.train_loss, 1e-10) << schedule;
    EXPECT_NEAR(course.summary.validation_loss, oracle.summary.validation_loss, 1e-10) << schedule;
    // Also the running statistics, which each micro-batch updates.
    ASSERT_EQ(course.state.size(), oracle.state.size());
    for (const auto& [name, tensor] : oracle.state) {
      EXPECT_TRUE(course.state.at(name).allclose(tensor, 1e-10, 1e-10)) << name << " " << schedule;
    }
  }
}

TEST_F(PipelineRun, ComputesInMixedPrecision) {
  const auto largest_difference = [](const PipelineCourse& a, const PipelineCourse& b) {
    double result = 0;
    for (const auto& [name, tensor] : a.state) {
      result = std::max(result, (tensor - b.state.at(name)).abs().max().item<double>());
    }
    return result;
  };
  auto alone = accumulating(4), cut = pipelined("1f1b", 4);
  alone.trainer.precision = "32";
  const auto in_float = fit(alone, 1, "mlp");
  for (auto* options : {&alone, &cut}) options->trainer.precision = "bf16-mixed";
  const auto oracle = fit(alone, 1, "mlp"), course = fit(cut, 2, "mlp");
  EXPECT_LT(largest_difference(course, oracle), 1e-5);
  EXPECT_GT(largest_difference(oracle, in_float), 1e-4);
}

// Masks of dropout depend on the sample, not on the rank.
TEST_F(PipelineRun, DropsWhatOneProcessDrops) {
  auto alone = accumulating(4);
  const auto oracle = fit(alone, 1, "gpt with dropout");
  for (const std::string schedule : {"gpipe", "zb-v"}) {
    expect_close(fit(pipelined(schedule, 4), 2, "gpt with dropout").state, oracle.state, schedule);
  }
  const auto without = fit(alone, 1, "gpt");
  EXPECT_GT(std::abs(without.summary.train_loss - oracle.summary.train_loss), 1e-6);
}

TEST_F(PipelineRun, RefusesWhatItCannotRunBeforeItBegins) {
  const auto refused = [&](TrainOptions options, int ranks, const std::string& what) {
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    options.run.folder = (folder_ / fmt::format("refused-{}", ++runs_)).string();
    comm::local::run(ranks, [&](const comm::Group& world) {
      Task task(make_sized_model("mlp"));
      const SizedSamples samples(sizes_of("mlp"));
      try {
        Trainer(options, world).fit(task, samples, samples);
      } catch (const Error& problem) {
        errors[static_cast<size_t>(world.rank())] = problem.what();
      }
    });
    for (const auto& error : errors) EXPECT_THAT(error, HasSubstr(what));
  };
  auto options = pipelined("interleaved", 3);
  refused(options, 2, "interleaved");
  options = pipelined("zb-v", 8);
  refused(options, 5, "blocks");
  options = pipelined("dualpipe-v", 3);
  refused(options, 2, "dualpipe-v");
  options = pipelined("gpipe", 4);
  options.pipeline.cut = "stem|head";
  refused(options, 2, "stem");
  options = pipelined("gpipe", 4);
  options.trainer.recompute = "budget:64";
  refused(options, 2, "no recomputation keeps the activations of pipeline rank 0 within");
  options.trainer.recompute = "none|full|none";
  refused(options, 2, "expected 2 policies, one for each stage, or a single one");
  options = pipelined("gpipe", 4);
  options.mesh.pipeline = 3;
  refused(options, 4, "mesh.pipeline and mesh.data do not fit");
  options = pipelined("gpipe", 4);
  options.trainer.accumulate_grad_batches = 2;
  refused(options, 2, "trainer.accumulate_grad_batches and pipeline.micro_batches both accumulate");
  options = options_;
  options.mesh.pipeline = 2;
  refused(options, 2, "strategy ddp does not cut the model into stages");
  options = pipelined("1f1b", 4);
  options.mesh.axes = "pipeline=2 data=2-1";
  options.trainer.sync_batchnorm = true;
  refused(options, 3,
          "an option that a pipeline does not support; got trainer.sync_batchnorm on stages with "
          "different numbers of replicas");
}

class FailsAt : public Callback {
 public:
  explicit FailsAt(int64_t step) : step_(step) {}
  std::string name() const override { return "fails_at"; }
  void on_before_optimizer_step(FitContext& context) override {
    if (context.at.step == step_) throw Error("test", ErrorKind::failure, {.what = "broken"});
  }

 private:
  const int64_t step_;
};

TEST_F(PipelineRun, EndsOnAllRanksWhenOneFails) {
  auto options = pipelined("1f1b", 4);
  options.comm.timeout_seconds = 20;
  options.checkpoint.on_exception = true;
  for (const int broken : {0, 2, 3}) {
    options.run.folder = (folder_ / fmt::format("broken-{}", broken)).string();
    std::vector<std::string> errors(4);
    const auto train = [&](const comm::Group& world) {
      Task task(make_sized_model("mlp"));
      const SizedSamples samples(sizes_of("mlp"));
      Trainer trainer(options, world);
      if (world.rank() == broken) trainer.add(std::make_shared<FailsAt>(2));
      try {
        trainer.fit(task, samples, samples);
      } catch (const Error& problem) {
        errors[static_cast<size_t>(world.rank())] = problem.what();
        throw;
      }
    };
    EXPECT_THROW(comm::local::run(4, train, world_options(options).group), Error);
    for (int rank = 0; rank < 4; ++rank) {
      const auto& error = errors[static_cast<size_t>(rank)];
      EXPECT_THAT(error, HasSubstr(rank == broken ? "broken" : fmt::format("rank {}", broken)))
          << "on rank " << rank;
    }
  }
}

// Numbers logged with sync_dist come from the ranks that compute outputs.
class LoggingLoss : public Task {
 public:
  using Task::Task;
  at::Tensor loss(const Outputs& outputs, const data::Batch& batch) override {
    if (is_training) {
      log("greatest", outputs.only().max(),
          {.on_epoch = true, .reduce = observe::LogReduction::max, .sync_dist = true});
      log("summed", static_cast<double>(batch.size()),
          {.on_epoch = true, .reduce = observe::LogReduction::sum, .sync_dist = true});
    }
    return Task::loss(outputs, batch);
  }
  void on_validation_start(FitContext&) override { is_training = false; }
  void on_validation_end(FitContext&) override { is_training = true; }
  bool is_training = true;
};

TEST_F(PipelineRun, LogsWhatTheLastStageLogs) {
  const auto rows_on = [&](TrainOptions options, int ranks) {
    options.run.folder = (folder_ / fmt::format("logs-{}", ranks)).string();
    options.trainer.num_sanity_val_steps = 0;
    comm::local::run(ranks, [&](const comm::Group& world) {
      LoggingLoss task(make_sized_model("mlp"));
      const SizedSamples samples(sizes_of("mlp"));
      Trainer(options, world).fit(task, samples, samples);
    });
    return csv_rows(std::filesystem::path(options.run.folder) / "run");
  };
  auto options = pipelined("zb-v", 2);
  options.mesh.pipeline = 2;
  const auto expected = rows_on(accumulating(2), 1), found = rows_on(options, 4);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].second.size(), expected[i].second.size()) << i;
    for (const auto& [name, text] : expected[i].second) {
      EXPECT_NEAR(std::stod(found[i].second.at(name)), std::stod(text), 1e-9) << name;
    }
  }
}

// The trace has a span for each action of the schedule.
TEST_F(PipelineRun, RecordsEveryActionAndTheBubbles) {
  for (const std::string schedule : {"1f1b", "interleaved"}) {
    auto options = pipelined(schedule, 4);
    options.trainer.trace = true;
    options.run.folder = (folder_ / ("traced-" + schedule)).string();
    const auto course = fit(options, 2, "mlp");
    ASSERT_EQ(course.summary.bubble.size(), 2u);
    for (const double share : course.summary.bubble) {
      EXPECT_GT(share, 0);
      EXPECT_LT(share, 1);
    }
    const auto trace = observe::report::read_trace(std::filesystem::path(options.run.folder) /
                                                   "run" / "trace.json");
    const auto actions =
        layout::make_schedule(schedule, {.ranks = 2, .micro_batches = 4, .blocks = 8}).ranks;
    for (size_t rank = 0; rank < 2; ++rank) {
      std::multiset<std::string> expected, found;
      for (const auto& action : actions[rank]) expected.insert(layout::text_of(action));
      for (const auto& span : trace.ranks[rank].spans) {
        const bool is_action = span.track == "passes" || span.track == "messages";
        if (span.step == 0 && is_action) found.insert(span.name);
      }
      EXPECT_EQ(found, expected) << schedule << " on rank " << rank;
    }
  }
}

TEST(PipelinePlan, FollowsTheOptions) {
  TrainOptions options;
  options.trainer.strategy = "pipeline";
  const auto plan = [&](int ranks) {
    return resolve_plan(options, layout::Cluster::uniform(1, ranks));
  };
  EXPECT_EQ(plan(4).mesh.text(), "pipeline=4 data=1");
  EXPECT_EQ(plan(4).schedule, "1f1b");
  EXPECT_EQ(plan(4).micro_batches, 8);
  options.mesh.data = 2;
  options.pipeline = {.schedule = "zb-v", .cut = "a|b"};
  EXPECT_EQ(plan(4).mesh.text(), "pipeline=2 data=2");
  EXPECT_EQ(plan(4).schedule, "zb-v");
  EXPECT_EQ(plan(4).micro_batches, 4);
  EXPECT_EQ(plan(4).stages.cut, "a|b");
  options.trainer.accumulate_grad_batches = 6;
  EXPECT_EQ(plan(4).micro_batches, 6);
  options.trainer.strategy = "gpipe";
  EXPECT_EQ(plan(4).schedule, "gpipe");
  EXPECT_EQ(plan(4).strategy, "gpipe");
  EXPECT_EQ(resolve_plan(options, layout::Cluster()).mesh.text(), "pipeline=1 data=2");
}

}  // namespace
}  // namespace troika::train
