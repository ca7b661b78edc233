#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/parallel/delayed_steps.h"
#include "tests/support/errors.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel::delayed_steps {
namespace {

constexpr StageWeights kAll[] = {StageWeights::stashed, StageWeights::vertical_sync,
                                 StageWeights::double_buffered};

constexpr const char* kModels[] = {"mlp", "resnet20 in training", "gpt untied"};

// TROIKA_DELAYED_STEPS is the number of steps of ResNet-20, which is slow; scripts/test-schedules
// sets it to that of the other models.
constexpr int kSteps = 30;

int steps_of(const std::string& model) {
  if (!model.starts_with("resnet20")) return kSteps;
  const char* text = std::getenv("TROIKA_DELAYED_STEPS");
  return text ? std::stoi(text) : 8;
}

// Counts the forward passes of a first stage.
class CountedSegment : public Segment {
 public:
  using Segment::Segment;
  nn::Tensors inputs(int i) override {
    ++begun;
    return Segment::inputs(i);
  }
  int begun = 0;
};

class WatchedExchange : public DataParallel {
 public:
  WatchedExchange(torch::nn::Module& part, const Group& data, std::function<void()> finishes)
      : DataParallel(part, data), finishes_(std::move(finishes)) {}
  void finish_backward() override {
    finishes_();
    DataParallel::finish_backward();
  }

 private:
  const std::function<void()> finishes_;
};

// Steps of m micro-batches with drains in between.
std::vector<int> segments_of(int steps, int m) {
  if (steps < kSteps) return {(steps - 3) * m, 1 * m, 2 * m};
  return {13 * m, 1 * m, 2 * m, (steps - 16) * m};
}

TEST(AsynchronousPipeline, StepsAsDelayedUpdatesOfOneProcess) {
  for (const auto weights : kAll) {
    for (int stages = 1; stages <= 4; ++stages) {
      for (const std::string model : kModels) {
        const int m = weights == StageWeights::double_buffered ? stages : 1;
        expect_delayed_steps({.model = model,
                              .stages = stages,
                              .weights = weights,
                              .micro_batches = m,
                              .segments = segments_of(steps_of(model), m)});
      }
    }
  }
}

TEST(AsynchronousPipeline, OneStageIsPlainGradientDescent) {
  for (const std::string model : kModels) {
    SCOPED_TRACE(model);
    const int steps = steps_of(model);
    const Course course{.model = model, .stages = 1, .segments = {steps}};
    const auto plain = case_of(course);
    CaseBatches batches(plain, steps);
    std::vector<optim::Parameter> parameters;
    for (const auto& [name, tensor] : nn::trained_parameters(*plain.model)) {
      parameters.push_back({name, tensor});
    }
    const auto optimizer = optimizer_of(course, parameters);
    for (int step = 0; step < steps; ++step) {
      plain.model->zero_grad(/*set_to_none=*/true);
      batches.loss(step, plain.model->forward(batches.inputs(step))).backward();
      optimizer->step();
    }
    const auto delayed = oracle(course).after.back();
    for (const auto& parameter : parameters) {
      EXPECT_TRUE(parameter.tensor.equal(delayed.at(parameter.name))) << parameter.name;
    }
  }
}

// The gradients of weights that have changed since the forward pass. ResNet-20 diverges within a
// few steps.
TEST(AsynchronousPipeline, StepsWithoutTheStash) {
  for (const std::string model : kModels) {
    const bool diverges = model.starts_with("resnet20");
    expect_delayed_steps({.model = model,
                          .stages = 3,
                          .weights = StageWeights::unstashed,
                          .segments = diverges ? std::vector{3} : segments_of(kSteps, 1)});
  }
  expect_delayed_steps({.stages = 4,
                        .weights = StageWeights::unstashed,
                        .micro_batches = 2,
                        .segments = {12, 3},
                        .optimizer = "adamw",
                        .in_flight = 2});
  expect_delayed_steps({.stages = 3,
                        .weights = StageWeights::unstashed,
                        .micro_batches = 2,
                        .segments = {14, 5},
                        .shared_by = {2, 1, 1}});
}

// Macro-batches; the last step before a drain may have fewer micro-batches.
TEST(AsynchronousPipeline, AccumulatesMicroBatches) {
  for (const auto weights : kAll) {
    for (int stages = 1; stages <= 4; ++stages) {
      for (const std::string model : kModels) {
        if (steps_of(model) < kSteps && stages != 3) continue;
        const int m = weights == StageWeights::double_buffered ? stages + 1 : 3;
        expect_delayed_steps({.model = model,
                              .stages = stages,
                              .weights = weights,
                              .micro_batches = m,
                              .segments = {6 * m, 2 * m + 2, 1}});
      }
    }
  }
}

TEST(AsynchronousPipeline, AveragesOverReplicas) {
  for (const auto weights : kAll) {
    expect_delayed_steps({.model = "gpt untied",
                          .stages = 2,
                          .replicas = 2,
                          .weights = weights,
                          .micro_batches = 2,
                          .segments = {10, 8}});
  }
}

// The forward pass after a step's last backward pass needs the step's weights if they are stashed,
// but not with two versions: then it runs before anything waits for the averages.
TEST(AsynchronousPipeline, AveragesBehindTheNextForwardPassOfTwoVersions) {
  const std::pair<StageWeights, std::vector<int>> rows[] = {
      {StageWeights::stashed, {3, 5, 7, 8}}, {StageWeights::double_buffered, {4, 6, 8, 8}}};
  for (const auto& [weights, expected] : rows) {
    const Course course{
        .stages = 2, .replicas = 2, .weights = weights, .micro_batches = 2, .segments = {8}};
    comm::local::run(4, [&](const Group& world) {
      const comm::MeshGroups groups(world, layout::Mesh::parse(course.mesh()));
      const auto of = case_of(course);
      CaseBatches batches(of, 16);
      CountedSegment source(batches, 0, 2, groups.data().rank(), 0.5);
      std::vector<int> begun;
      Pipeline pipeline(of.model, groups,
                        {.micro_batches = 2,
                         .weights = course.weights,
                         .make_exchange = [&](torch::nn::Module& part, const Group& data) {
                           return std::make_unique<WatchedExchange>(
                               part, data, [&] { begun.push_back(source.begun); });
                         }});
      const auto optimizer = optimizer_of(course, pipeline.parameters());
      for (int64_t left = 8; left > 0; left -= 2) {
        pipeline.zero_grad();
        pipeline.advance(source, left);
        pipeline.step(*optimizer);
      }
      const bool is_first = pipeline.place().own_stages().front() == 0;
      EXPECT_EQ(begun, is_first ? expected : begun);
    });
  }
}

// 1F1B-RR: micro-batch b is for replica b mod r. Segments end within a step, and have fewer
// micro-batches than a stage has replicas.
TEST(AsynchronousPipeline, StagesShareMicroBatchesInTurns) {
  const std::vector<std::vector<int>> meshes{{2, 1},    {1, 3}, {2, 1, 1},
                                             {1, 2, 1}, {3, 2}, {1, 3, 1}};
  for (const auto weights : kAll) {
    for (const auto& replicas : meshes) {
      const int ranks = layout::Mesh::parse(fmt::format("pipeline={} data={}", replicas.size(),
                                                        fmt::join(replicas, "-")))
                            .ranks();
      const int m = weights == StageWeights::double_buffered ? ranks + 1 : 3;
      expect_delayed_steps({.stages = static_cast<int>(replicas.size()),
                            .weights = weights,
                            .micro_batches = m,
                            .segments = {8 * m, 2 * m + 1, 1, 5 * m + 2},
                            .shared_by = replicas});
    }
  }
  expect_delayed_steps({.model = "gpt untied",
                        .stages = 3,
                        .micro_batches = 2,
                        .segments = {30, 7},
                        .in_flight = 2,
                        .shared_by = {2, 1, 1}});
}

// The last segments end with steps in which the first replica of a stage has no micro-batch.
TEST(AsynchronousPipeline, ReplicasShareRunningStatistics) {
  const std::string model = "resnet20 in training";
  for (const auto weights : {StageWeights::stashed, StageWeights::double_buffered}) {
    expect_delayed_steps({.model = model,
                          .stages = 2,
                          .replicas = 2,
                          .weights = weights,
                          .micro_batches = 2,
                          .segments = {6, 1}});
    expect_delayed_steps({.model = model,
                          .stages = 2,
                          .weights = weights,
                          .micro_batches = 5,
                          .segments = {9, 6},
                          .shared_by = {2, 1}});
  }
  expect_delayed_steps({.model = model,
                        .stages = 3,
                        .micro_batches = 3,
                        .segments = {7, 4},
                        .shared_by = {1, 2, 1}});
}

// As PipeDream's runtime: stages step at different times, with learning rates of their own.
TEST(AsynchronousPipeline, StagesStepByTheirReplicas) {
  const std::vector<std::vector<int>> meshes{{2, 1}, {1, 3}, {2, 1, 1}, {3, 2}};
  for (const auto& replicas : meshes) {
    const int m = replicas == std::vector<int>{3, 2} ? 6 : replicas[0] * replicas[1];
    expect_delayed_steps({.stages = static_cast<int>(replicas.size()),
                          .micro_batches = m,
                          .segments = {8 * m, 2 * m + 1, 1, 6 * m},
                          .shared_by = replicas,
                          .steps_by_replicas = true});
  }
}

// The inner stages have one micro-batch more in flight than with PipeDream's runtime.
TEST(AsynchronousPipeline, WarmsUpByNoam) {
  for (const auto weights : kAll) {
    expect_delayed_steps({.stages = 4,
                          .weights = weights,
                          .micro_batches = weights == StageWeights::double_buffered ? 8 : 4,
                          .segments = {32, 9, 1},
                          .shared_by = {4, 1, 1, 1},
                          .warm_up_by = layout::WarmUp::noam});
  }
}

TEST(AsynchronousPipeline, KeepsMoreMicroBatchesInFlight) {
  for (const auto weights : kAll) {
    expect_delayed_steps({.stages = 3,
                          .weights = weights,
                          .micro_batches = weights == StageWeights::double_buffered ? 6 : 1,
                          .segments = {30, 2, 12},
                          .in_flight = 2});
  }
}

TEST(AsynchronousPipeline, StepsEveryOptimizer) {
  for (const std::string optimizer : {"adamw", "adagrad"}) {
    expect_delayed_steps({.stages = 3, .segments = {12, 8}, .optimizer = optimizer});
  }
}

TEST(AsynchronousPipeline, MayDrainEarlierThanItWasSaid) {
  // As a stop is asked for: at the same step on all ranks.
  const Course planned{.stages = 4, .segments = {8}};
  const auto expected = oracle(planned);
  comm::local::run(4, [&](Group world) {
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=4"));
    const auto of = case_of(planned);
    CaseBatches batches(of, 8);
    Pipeline pipeline(of.model, groups, {.weights = planned.weights});
    const auto optimizer = optimizer_of(planned, pipeline.parameters());
    Segment source(batches, 0, 1, 0, 1);
    int64_t left = 1000;
    for (int step = 1; left > 0; ++step) {
      pipeline.zero_grad();
      pipeline.advance(source, left--);
      pipeline.step(*optimizer);
      if (step == 5) left = 3;
    }
    for (const auto& parameter : pipeline.parameters()) {
      EXPECT_TRUE(parameter.tensor.equal(expected.after[0].at(parameter.name))) << parameter.name;
    }
    // Drained: evaluations may run.
    int outputs = 0;
    pipeline.evaluate(batches, 1, [&](int, const nn::Tensors&) { ++outputs; });
    EXPECT_EQ(outputs, world.rank() == 3);
  });
}

TEST(AsynchronousPipeline, RefusesEvaluationsBetweenDrains) {
  comm::local::run(1, [&](Group world) {
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=1"));
    const auto of = case_of({.segments = {4}});
    CaseBatches batches(of, 4);
    Pipeline pipeline(of.model, groups, {.weights = StageWeights::stashed});
    pipeline.advance(batches, 4);
    EXPECT_ERROR(pipeline.evaluate(batches, 1, [](int, const nn::Tensors&) {}), ErrorKind::usage,
                 "[parallel] a pipeline has micro-batches in flight; got an evaluation between "
                 "two drains, expected advance() and step() until the drain first");
  });
}

TEST(AsynchronousPipeline, RefusesWhatItCannotRun) {
  const auto refused = [](int ranks, const std::string& mesh, const std::string& model,
                          const PipelineOptions& options, const std::string& text) {
    comm::local::run(ranks, [&](Group world) {
      const comm::MeshGroups groups(world, layout::Mesh::parse(mesh, world.size()));
      EXPECT_ERROR(Pipeline(pipeline_case_alone(model, 2).model, groups, options), ErrorKind::usage,
                   text);
    });
  };
  refused(2, "pipeline=2", "mlp", {.schedule = "gpipe", .weights = StageWeights::stashed},
          "[parallel] pipedream (a pipeline without flushes); got schedule gpipe, "
          "expected schedule 1f1b");
  refused(3, "pipeline=2 data=2-1", "mlp", {.weights = StageWeights::vertical_sync},
          "[parallel] pipedream-vertical-sync (a pipeline without flushes); got 1 micro-batches in "
          "a step, expected at least 2");
  refused(3, "pipeline=2 data=2-1", "mlp",
          {.micro_batches = 3, .weights = StageWeights::stashed, .steps_by_replicas = true},
          "[parallel] pipedream (a pipeline without flushes); got 3 micro-batches in a step, "
          "expected a multiple of 2");
  refused(2, "pipeline=2", "gpt", {.weights = StageWeights::stashed},
          "[parallel] a pipeline without flushes shares a parameter between ranks; got "
          "transformer.wte.weight, expected parameters of one rank each (a cut that keeps the "
          "parameter on one rank, a model whose embedding and head are apart, or schedule 1f1b "
          "with flushes)");
}

}  // namespace
}  // namespace troika::parallel::delayed_steps
