// The trainer on pipelines without flushes, compared with one process that makes the same delayed
// steps one after the other.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/support/errors.h"
#include "tests/train/pipelined_runs.h"
#include "troika/data/sampler.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/norm.h"
#include "troika/parallel/pipeline/pipeline_schedule.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {
namespace {

using layout::StageWeights;
using testing::HasSubstr;

constexpr int kMicroBatches = 11;  // of an epoch

class AsynchronousRun : public PipelinedRuns {
 protected:
  struct Stage {
    layout::AsynchronousStage order;
    std::vector<optim::Parameter> parameters;
    std::unique_ptr<optim::FlatOptimizer> optimizer;
    std::vector<std::vector<at::Tensor>> versions;
  };

  AsynchronousRun() { options_.trainer.gradient_clip_algorithm = "stage_norm"; }

  TrainOptions asynchronous(const std::string& strategy, int64_t micro_batches = 0) const {
    return pipelined(strategy, micro_batches);
  }

  // The weights after steps of one process, each micro-batch of a stage with the version that it
  // has in a pipeline of `ranks` stages. `segments` are the micro-batches between drains.
  ModuleState oracle(const TrainOptions& options, int ranks, const std::string& model_name,
                     const std::vector<int>& segments) const {
    const auto plan = resolve_plan(options, layout::Cluster::uniform(1, ranks));
    const auto m = static_cast<int>(plan.micro_batches);
    const auto model = make_sized_model(model_name);
    model->to(at::kDouble);
    model->train();
    const auto stage_of = stages_of(*model, plan);
    std::vector<Stage> stages;
    for (int i = 0; i < plan.mesh.size(layout::Axis::pipeline); ++i) {
      auto& stage = stages.emplace_back();
      stage.order = layout::asynchronous_stage(plan.asynchronous(), i);
      for (const auto& [name, tensor] : nn::trained_parameters(*model)) {
        if (stage_of.at(name) == i) stage.parameters.push_back({name, tensor});
      }
      stage.optimizer = optim::make_optimizer(stage.parameters, options.optimizer);
      stage.optimizer->set_learning_rate(options.optimizer.lr * stage.order.learning_rate_factor);
    }
    const SizedSamples samples(sizes_of(model_name));
    const data::Sampler sampler({.size = samples.size(),
                                 .global_batch = 4,
                                 .seed = static_cast<uint64_t>(options.run.seed)});
    std::vector<std::vector<int64_t>> order;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      for (auto& batch : sampler.batches({epoch, 0})) order.push_back(std::move(batch));
    }
    size_t next = 0;
    for (const int segment : segments) {
      for (auto& stage : stages) stage.versions = {values(stage.parameters)};
      model->zero_grad(/*set_to_none=*/true);
      for (int b = 0; b < segment; ++b) {
        for (size_t i = 0; i < stages.size(); ++i) {
          const auto& stage = stages[i];
          const auto used = plan.mesh.has_uneven_stages()
                                ? stage.order.version(b)
                                : version(plan.weights(), m, ranks, static_cast<int>(i), b);
          set(stage.parameters, stage.versions.at(static_cast<size_t>(used)));
        }
        const auto batch = samples.load(order.at(next++), {});
        const auto outputs = model->forward(batch.inputs.to(at::kDouble));
        (at::cross_entropy_loss(outputs, batch.targets) * (1.0 / m)).backward();
        for (auto& stage : stages) {
          const auto own = stage.order.micro_batches;
          if ((b + 1) % own != 0 && b + 1 != segment) continue;
          set(stage.parameters, stage.versions.back());
          step(stage, static_cast<double>(m) / static_cast<double>(own),
               options.trainer.gradient_clip_val);
        }
      }
      for (const auto& stage : stages) set(stage.parameters, stage.versions.back());
    }
    ModuleState result;
    for (const auto& [name, tensor] : nn::named_state(*model)) result[name] = tensor.detach();
    return result;
  }

  // The drains come at the ends of epochs.
  static std::vector<int> epochs(int count) {
    return std::vector<int>(static_cast<size_t>(count), kMicroBatches);
  }

  static void expect_equal(const ModuleState& found, const ModuleState& expected) {
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(found.at(name).equal(tensor)) << name;
    }
  }

 private:
  static std::map<std::string, int> stages_of(const nn::Model& model, const layout::Plan& plan) {
    const parallel::PipelineOptions options{.micro_batches = static_cast<int>(plan.micro_batches),
                                            .weights = plan.weights()};
    const auto ends = parallel::ends_for(
        model, plan.stages.cut, parallel::passes_for(options, plan.mesh, model.blocks().size()));
    std::map<std::string, int> result;
    size_t begin = 0;
    for (size_t s = 0; s < ends.size(); ++s) {
      for (const auto& name : parallel::tensors_of_blocks(model, begin, ends[s])) {
        result[name] = static_cast<int>(s);
      }
      begin = ends[s];
    }
    return result;
  }

  static int version(StageWeights weights, int m, int p, int stage, int b) {
    if (p == 1) return b / m;
    if (weights == StageWeights::double_buffered) return std::max(0, b / m - 1);
    const int delay = weights == StageWeights::stashed ? p - 1 - stage : p - 1;
    return std::max(0, b - delay) / m;
  }

  static std::vector<at::Tensor> values(const std::vector<optim::Parameter>& parameters) {
    std::vector<at::Tensor> result;
    for (const auto& parameter : parameters) result.push_back(parameter.tensor.detach().clone());
    return result;
  }

  static void set(const std::vector<optim::Parameter>& parameters,
                  const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor.copy_(values[i]);
  }

  static void step(Stage& stage, double factor, double bound) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : stage.parameters) {
      gradients.push_back(parameter.tensor.grad());
      if (factor != 1) gradients.back().mul_(factor);
    }
    if (bound > 0) {
      parallel::clip_to(gradients, std::sqrt(parallel::sum_of_squares(gradients)), bound);
    }
    stage.optimizer->step();
    for (const auto& parameter : stage.parameters) parameter.tensor.mutable_grad().reset();
    stage.versions.push_back(values(stage.parameters));
  }
};

TEST_F(AsynchronousRun, TrainsAsDelayedStepsOfOneProcess) {
  for (const int ranks : {1, 2, 4}) {
    for (const std::string strategy : {"pipedream", "pipedream_2bw"}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", strategy, ranks));
      const auto options = asynchronous(strategy);
      const auto course = fit(options, ranks, "mlp");
      const int m = strategy == "pipedream" ? 1 : ranks;
      EXPECT_EQ(course.summary.steps, 2 * ((kMicroBatches + m - 1) / m));
      EXPECT_EQ(course.summary.samples, 2 * kMicroBatches * 4);
      expect_equal(course.state, oracle(options, ranks, "mlp", epochs(2)));
    }
  }
}

// The last step of an epoch has one micro-batch, and the first stage two replicas.
TEST_F(AsynchronousRun, StagesShareMicroBatchesInTurns) {
  for (const bool steps_by_replicas : {false, true}) {
    SCOPED_TRACE(steps_by_replicas);
    auto options = asynchronous("pipedream");
    options.mesh.axes = "pipeline=2 data=2-1";
    options.pipeline.steps_by_replicas = steps_by_replicas;
    options.data.global_batch_size = 4;
    const auto course = fit(options, 3, "mlp");
    EXPECT_EQ(course.summary.steps, 2 * ((kMicroBatches + 1) / 2));
    EXPECT_EQ(course.summary.samples, 2 * kMicroBatches * 4);
    const auto expected = oracle(options, 3, "mlp", epochs(2));
    for (const auto& [name, tensor] : expected) {
      EXPECT_LE((course.state.at(name) - tensor).abs().max().item<double>(), 1e-12) << name;
    }
    EXPECT_EQ(std::ranges::count_if(
                  course.rows, [](const auto& row) { return row.second.contains("train/loss"); }),
              course.summary.steps);
  }
}

TEST_F(AsynchronousRun, SynchronizesVerticallyAndAccumulates) {
  auto options = asynchronous("pipedream", 3);
  options.pipeline.vertical_sync = true;
  expect_equal(fit(options, 4, "mlp").state, oracle(options, 4, "mlp", epochs(2)));
}

// Validations, and checkpoints three steps after they are asked for.
TEST_F(AsynchronousRun, DrainsWhereAllStagesMustBeAtOneStep) {
  auto options = asynchronous("pipedream");
  options.trainer.val_check_interval = "4";
  auto course = fit(options, 4, "mlp");
  expect_equal(course.state, oracle(options, 4, "mlp", {4, 4, 3, 4, 4, 3}));
  EXPECT_EQ(
      std::ranges::count_if(course.rows,
                            [](const auto& row) { return row.second.contains("validation/loss"); }),
      6);
  options = asynchronous("pipedream");
  options.checkpoint.every_n_train_steps = 6;
  expect_equal(fit(options, 4, "mlp").state, oracle(options, 4, "mlp", {9, 2, 4, 6, 1}));
}

TEST_F(AsynchronousRun, OneRankIsDdp) {
  auto options = asynchronous("pipedream");
  auto alone = options_;
  for (auto* one : {&options, &alone}) one->trainer.gradient_clip_algorithm = "norm";
  options.trainer.gradient_clip_algorithm = "stage_norm";
  expect_equal(fit(options, 1, "mlp").state, fit(alone, 1, "mlp").state);
}

TEST_F(AsynchronousRun, FlushesAs1f1b) {
  auto options = pipelined("pipedream_flush", 4), same = pipelined("1f1b", 4);
  expect_equal(fit(options, 2, "mlp").state, fit(same, 2, "mlp").state);
}

// Each rank logs its losses at its own step.
TEST_F(AsynchronousRun, LogsTheLossOfEveryStep) {
  const auto course = fit(asynchronous("pipedream"), 4, "mlp");
  int steps = 0;
  for (const auto& [step, row] : course.rows) steps += row.contains("train/loss");
  EXPECT_EQ(steps, 2 * kMicroBatches);
}

// Stopped between two drains that an uninterrupted run does not have.
TEST_F(AsynchronousRun, GoesOnFromADrainedCheckpoint) {
  for (const std::string strategy : {"pipedream", "pipedream_2bw"}) {
    SCOPED_TRACE(strategy);
    auto options = asynchronous(strategy);
    options.run.folder = (folder_ / strategy).string();
    options.trainer.max_steps = 5;
    fit(options, 2, "mlp");
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    const auto resumed = fit(options, 2, "mlp");
    const int m = strategy == "pipedream" ? 1 : 2;
    expect_equal(resumed.state,
                 oracle(options, 2, "mlp", {5 * m, kMicroBatches - 5 * m, kMicroBatches}));
  }
}

// Checkpoints have no versions, so every strategy resumes from them.
TEST_F(AsynchronousRun, OtherStrategiesGoOn) {
  auto options = asynchronous("pipedream");
  options.run.folder = (folder_ / "changes").string();
  options.trainer.max_epochs = 1;
  options.trainer.gradient_clip_algorithm = "value";
  fit(options, 4, "mlp");
  options.trainer.max_epochs = 2;
  options.trainer.ckpt_path = "last";
  options.trainer.strategy = "ddp";
  options.pipeline = {};
  const auto course = fit(options, 1, "mlp");
  EXPECT_EQ(course.summary.steps, 2 * kMicroBatches);
}

class AsksToStop : public Callback {
 public:
  std::string name() const override { return "asks_to_stop"; }
  void on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) override {
    if (context.at.step == 3) context.ask_to_stop("enough");
  }
};

TEST_F(AsynchronousRun, DrainsBeforeItStops) {
  auto options = asynchronous("pipedream");
  const auto course = fit(options, 4, "mlp", [](Trainer& trainer, Task&) {
    trainer.add(std::make_shared<AsksToStop>());
  });
  EXPECT_EQ(course.summary.steps, 6);
  expect_equal(course.state, oracle(options, 4, "mlp", {6}));
}

TEST_F(AsynchronousRun, RefusesWhatNeedsAllGradientsAtOnce) {
  const auto refused = [&](TrainOptions options, int ranks, const std::string& model,
                           const std::string& what) {
    options.run.folder = (folder_ / fmt::format("refused-{}", ++runs_)).string();
    comm::local::run(ranks, [&](const comm::Group& world) {
      Task task(make_sized_model(model));
      const SizedSamples samples(sizes_of(model));
      std::string error;
      try {
        Trainer(options, world).fit(task, samples, samples);
      } catch (const Error& problem) {
        error = problem.what();
      }
      EXPECT_THAT(error, HasSubstr(what));
    });
  };
  auto options = asynchronous("pipedream");
  options.trainer.gradient_clip_algorithm = "norm";
  refused(options, 2, "mlp",
          "an option that a pipeline without flushes does not support; got "
          "trainer.gradient_clip_algorithm norm with schedule pipedream, expected value, or "
          "stage_norm: the norm of each stage");
  options = asynchronous("pipedream_2bw", 1);
  refused(options, 2, "mlp",
          "schedule.name pipedream-2bw; got schedule.micro_batches 1, expected at least 2, those "
          "in flight");
  options = asynchronous("pipedream");
  options.zero.stage = 1;
  refused(options, 2, "mlp", "schedule.name pipedream; got exchange.method zero");
  options = asynchronous("pipedream");
  refused(options, 2, "gpt", "a pipeline without flushes shares a parameter between ranks");
  options = asynchronous("1f1b", 4);
  options.pipeline.vertical_sync = true;
  refused(options, 2, "mlp", "strategy 1f1b does not take pipeline.vertical_sync");
  options.pipeline.vertical_sync = false;
  options.pipeline.stash_weights = false;
  refused(options, 2, "mlp", "strategy 1f1b does not take pipeline.stash_weights");
  options.pipeline.stash_weights = true;
  options.pipeline.in_flight = 2;
  refused(options, 2, "mlp", "strategy 1f1b does not take pipeline.in_flight");
  options = asynchronous("pipedream");
  options.pipeline.stash_weights = false;
  options.trainer.precision = "bf16-mixed";
  refused(options, 2, "mlp",
          "got trainer.precision bf16-mixed with schedule pipedream-unstashed, expected 32, or "
          "pipeline.stash_weights");
}

TEST(AsynchronousPlan, FollowsTheOptions) {
  TrainOptions options;
  const auto plan = [&](const std::string& strategy) {
    options.trainer.strategy = strategy;
    return resolve_plan(options, layout::Cluster::uniform(1, 4));
  };
  EXPECT_EQ(plan("pipedream").weights(), StageWeights::stashed);
  EXPECT_EQ(plan("pipedream").micro_batches, 1);
  EXPECT_EQ(plan("pipedream_2bw").weights(), StageWeights::double_buffered);
  EXPECT_EQ(plan("pipedream_2bw").micro_batches, 4);
  EXPECT_EQ(plan("pipedream_flush").weights(), StageWeights::synchronous);
  EXPECT_EQ(plan("pipedream_flush").schedule, "1f1b");
  EXPECT_EQ(plan("pipedream_flush").micro_batches, 8);
  options.pipeline.in_flight = 2;
  EXPECT_EQ(plan("pipedream").without_flushes.in_flight, 2);
  EXPECT_EQ(plan("pipedream_2bw").micro_batches, 8);
  options.pipeline.stash_weights = false;
  EXPECT_EQ(plan("pipedream").weights(), StageWeights::unstashed);
  options.pipeline = {};
  options.pipeline.in_flight = 2;
  options.pipeline.vertical_sync = true;
  EXPECT_EQ(plan("pipedream").weights(), StageWeights::vertical_sync);
  EXPECT_EQ(layout::Plan::parse(plan("pipedream").text(), "text"), plan("pipedream"));
}

}  // namespace
}  // namespace troika::train
