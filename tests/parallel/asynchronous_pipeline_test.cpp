#include <gmock/gmock.h>

#include <algorithm>

#include "tests/parallel/pipeline_course.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/parallel/pipeline/stage_module.h"

namespace troika::parallel {
namespace {

using comm::Group;
using layout::StageWeights;

struct Course {
  std::string model = "mlp";
  int stages = 2;
  int replicas = 1;
  StageWeights weights = StageWeights::stashed;
  int micro_batches = 1;             // of a step
  std::vector<int> segments = {30};  // micro-batches between drains
  std::string optimizer = "sgd";
  int in_flight = 1;
  int64_t samples = 2;  // of a micro-batch
};

// Micro-batches from `first` on; those of a replica are every `replicas`-th one of the oracle's.
class Segment : public MicroBatchSource {
 public:
  Segment(CaseBatches& all, int first, int replicas, int replica, double weight)
      : all_(all), first_(first), replicas_(replicas), replica_(replica), weight_(weight) {}

  nn::Tensors inputs(int i) override { return all_.inputs(at(i)); }
  at::Tensor loss(int i, nn::Tensors outputs) override {
    return all_.loss(at(i), std::move(outputs));
  }
  at::Tensor root(int, const at::Tensor& loss) override { return loss * weight_; }
  std::shared_ptr<const nn::SampleKeys> keys(int i) override { return all_.keys(at(i)); }

 private:
  int at(int i) const { return (first_ + i) * replicas_ + replica_; }

  CaseBatches& all_;
  const int first_, replicas_, replica_;
  const double weight_;
};

int all_micro_batches(const Course& course) {
  int sum = 0;
  for (const int segment : course.segments) sum += segment;
  return sum;
}

PipelineCase case_of(const Course& course) {
  return pipeline_case_alone(course.model,
                             course.samples * all_micro_batches(course) * course.replicas);
}

std::unique_ptr<optim::FlatOptimizer> optimizer_of(const Course& course,
                                                   std::vector<optim::Parameter> parameters) {
  optim::OptimizerOptions options{.name = course.optimizer, .lr = 0.05};
  if (course.optimizer == "sgd") options.momentum = 0.9;
  return optim::make_optimizer(std::move(parameters), options);
}

using Values = std::map<std::string, at::Tensor>;

// The number of steps whose results a stage's forward pass of micro-batch b uses (Narayanan et al.,
// SOSP 2019, section 3.3, and 2021, section 3.1).
int version(const Course& course, int stage, int b) {
  const int p = course.stages, m = course.micro_batches;
  const int first = course.in_flight * (p - 1), own = course.in_flight * (p - 1 - stage);
  if (p == 1) return b / m;
  switch (course.weights) {
    case StageWeights::stashed:
      return std::max(0, b - own) / m;
    case StageWeights::vertical_sync:
      return std::max(0, b - first) / m;
    default:
      return std::max(0, b / m - 1);
  }
}

struct Results {
  std::vector<Values> after;   // by segment: parameters and buffers
  std::vector<double> losses;  // by micro-batch, over all replicas
};

// One process that makes the same steps one after the other, each micro-batch with the weights of
// its versions.
Results oracle(const Course& course) {
  Results results;
  const auto of = case_of(course);
  auto& model = *of.model;
  const int all = all_micro_batches(course), m = course.micro_batches, r = course.replicas;
  CaseBatches batches(of, all * r);
  const PipelineOptions options{.micro_batches = m, .weights = course.weights};
  const auto ends =
      ends_for(model, "",
               passes_for(options, layout::Mesh(layout::Axis::pipeline, course.stages),
                          model.blocks().size()));
  std::map<std::string, int> stage_of;
  for (int s = 0; s < course.stages; ++s) {
    const size_t begin = s == 0 ? 0 : ends[static_cast<size_t>(s) - 1];
    for (const auto& name : tensors_of_blocks(model, begin, ends[static_cast<size_t>(s)])) {
      stage_of[name] = s;
    }
  }
  std::vector<optim::Parameter> parameters;
  for (const auto& [name, tensor] : nn::trained_parameters(model)) {
    parameters.push_back({name, tensor});
  }
  const auto optimizer = optimizer_of(course, parameters);
  const auto values = [&] {
    Values result;
    for (const auto& parameter : parameters) {
      result[parameter.name] = parameter.tensor.detach().clone();
    }
    return result;
  };
  const auto set = [&](const std::function<const Values&(int stage)>& from) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters) {
      parameter.tensor.copy_(from(stage_of.at(parameter.name)).at(parameter.name));
    }
  };
  int first = 0;
  for (const int segment : course.segments) {
    std::vector<Values> versions{values()};
    model.zero_grad(/*set_to_none=*/true);
    for (int b = 0; b < segment; ++b) {
      set([&](int stage) -> const Values& {
        return versions.at(static_cast<size_t>(version(course, stage, b)));
      });
      for (int replica = 0; replica < r; ++replica) {
        const int i = (first + b) * r + replica;
        const nn::KeyedDraws draws(batches.keys(i));
        const auto loss = batches.loss(i, model.forward(batches.inputs(i)));
        (loss * (1.0 / m / r)).backward();
        results.losses.push_back(loss.item<double>());
      }
      if ((b + 1) % m != 0 && b + 1 != segment) continue;
      set([&](int) -> const Values& { return versions.back(); });
      optimizer->step();
      model.zero_grad(/*set_to_none=*/true);
      versions.push_back(values());
    }
    first += segment;
    auto& after = results.after.emplace_back();
    for (const auto& [name, tensor] : nn::named_state(model)) {
      after[name] = tensor.detach().clone();
    }
  }
  return results;
}

// Trains on the ranks of a group, and expects the oracle's numbers: bit by bit without replicas.
void expect_oracle_of(const Group& world, const Course& course, const Results& expected) {
  const auto mesh = layout::Mesh::parse(
      fmt::format("pipeline={} data={}", course.stages, course.replicas), world.size());
  const comm::MeshGroups groups(world, mesh);
  const auto of = case_of(course);
  const int m = course.micro_batches, replica = groups.data().rank();
  CaseBatches batches(of, all_micro_batches(course) * course.replicas);
  const PipelineOptions options{
      .micro_batches = m, .weights = course.weights, .in_flight = course.in_flight};
  Pipeline pipeline(of.model, groups, options);
  const auto optimizer = optimizer_of(course, pipeline.parameters());
  const double bound = course.replicas == 1 ? 0 : 1e-12;
  const auto expect_near = [&](const at::Tensor& own, const at::Tensor& other, double bound,
                               const std::string& name) {
    EXPECT_LE((own - other).abs().max().item<double>(), bound)
        << name << " on rank " << world.rank();
  };
  int first = 0;
  for (size_t s = 0; s < course.segments.size(); ++s) {
    const int segment = course.segments[s];
    Segment source(batches, first, course.replicas, replica, 1.0 / m);
    for (int left = segment; left > 0; left -= m) {
      pipeline.zero_grad();
      const auto losses = pipeline.advance(source, left);
      pipeline.step(*optimizer);
      for (size_t i = 0; i < losses.size(); ++i) {
        const int b = first + segment - left + static_cast<int>(i);
        EXPECT_NEAR(losses[i].item<double>(),
                    expected.losses.at(static_cast<size_t>(b * course.replicas + replica)), bound);
      }
    }
    first += segment;
    for (const auto& parameter : pipeline.parameters()) {
      expect_near(parameter.tensor, expected.after[s].at(parameter.name), bound, parameter.name);
    }
    for (const auto& part : pipeline.exchanges()) {
      for (const auto& [name, buffer] : nn::named_buffers(part.module)) {
        if (course.replicas > 1) break;  // those of the first replica's micro-batches
        // Running variances are computed by another formula.
        expect_near(buffer.to(at::kDouble), expected.after[s].at(name).to(at::kDouble), 1e-12,
                    name);
      }
    }
  }
  const auto order = layout::asynchronous_stage(asynchronous_pipeline(options, course.stages),
                                                pipeline.place().own_stages().front());
  EXPECT_LE(pipeline.most_versions(), static_cast<size_t>(order.most_versions()));
  EXPECT_EQ(pipeline.most_active(), static_cast<size_t>(order.warm_up + 1));
}

void expect_delayed_steps(const Course& course) {
  SCOPED_TRACE(fmt::format("{}, {} stages, {} replicas, weights {}, {} micro-batches, {}",
                           course.model, course.stages, course.replicas,
                           layout::asynchronous_schedule_name(course.weights), course.micro_batches,
                           course.optimizer));
  const auto expected = oracle(course);
  comm::local::run(course.stages * course.replicas,
                   [&](Group world) { expect_oracle_of(world, course, expected); });
}

constexpr StageWeights kAll[] = {StageWeights::stashed, StageWeights::vertical_sync,
                                 StageWeights::double_buffered};

TEST(AsynchronousPipeline, StepsAsDelayedUpdatesOfOneProcess) {
  for (const auto weights : kAll) {
    for (int stages = 1; stages <= 4; ++stages) {
      for (const std::string model : {"mlp", "gpt untied"}) {
        const int m = weights == StageWeights::double_buffered ? stages : 1;
        expect_delayed_steps({.model = model,
                              .stages = stages,
                              .weights = weights,
                              .micro_batches = m,
                              .segments = {13 * m, 1 * m, 2 * m, 14 * m}});
      }
    }
  }
}

TEST(AsynchronousPipeline, UpdatesBatchNormsWithEachMicroBatch) {
  for (const auto weights : kAll) {
    expect_delayed_steps({.model = "resnet20 in training",
                          .stages = 3,
                          .weights = weights,
                          .micro_batches = 3,
                          .segments = {9, 6}});
  }
}

// Macro-batches; the last step before a drain may have fewer micro-batches.
TEST(AsynchronousPipeline, AccumulatesMicroBatches) {
  for (const auto weights : kAll) {
    for (const int m : {3, 5}) {
      expect_delayed_steps(
          {.stages = 4, .weights = weights, .micro_batches = m, .segments = {6 * m, 2 * m + 2, 1}});
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
          "[parallel] pipedream-vertical-sync (a pipeline without flushes); got pipeline=2 "
          "data=2-1, expected as many replicas of each stage");
  refused(2, "pipeline=2", "gpt", {.weights = StageWeights::stashed},
          "[parallel] a pipeline without flushes shares a parameter between ranks; got "
          "transformer.wte.weight, expected parameters of one rank each (a cut that keeps the "
          "parameter on one rank, a model whose embedding and head are apart, or schedule 1f1b "
          "with flushes)");
}

}  // namespace
}  // namespace troika::parallel
