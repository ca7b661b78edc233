// Pipelines whose stages are cut over a tensor axis, compared with one process.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/parallel/tensor_models.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/comm/world/mesh_groups.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/parallel/sharded.h"

namespace troika::parallel::mesh_test {

using namespace tensor_test;

namespace {

constexpr int64_t kSamples = 12;  // of a step; each is a micro-batch

struct Case {
  nn::ModelOptions model;
  std::string mesh;
  std::string schedule = "1f1b";
  bool sequence = false;
  std::string recompute = "none";
  int zero = 0;  // stage of ZeRO
  int64_t steps = 5;
  nn::LossTerms terms = {};
};

// The micro-batches [first, first + count) of a step, of one sample each.
class Samples : public MicroBatchSource {
 public:
  Samples(const Case& of, int64_t step, int64_t first, int64_t count)
      : step_(step),
        first_(first),
        count_(count),
        terms_(of.terms),
        uses_output_loss_(is_text(of.model)) {
    if (uses_output_loss_) {
      const auto text = (at::arange(kSamples * (kLength + 1), at::kLong) * 7 + step * 5) % kWords;
      const auto rows = text.view({kSamples, kLength + 1});
      inputs_ = rows.slice(1, 0, kLength);
      targets_ = rows.slice(1, 1);
      return;
    }
    inputs_ = (at::arange(kSamples * 16, at::kDouble) + 100 * step).sin().view({kSamples, 1, 4, 4});
    targets_ = (at::arange(kSamples, at::kLong) * 3 + step) % 5;
  }

  nn::Tensors inputs(int micro_batch) override { return {part(inputs_, micro_batch)}; }
  std::shared_ptr<const nn::OutputLoss> output_loss(int micro_batch) override {
    if (!uses_output_loss_) return nullptr;
    return std::make_shared<nn::OutputLoss>(
        nn::OutputLoss{.targets = part(targets_, micro_batch), .terms = terms_});
  }
  at::Tensor loss(int micro_batch, nn::Tensors outputs) override {
    if (uses_output_loss_) return nn::only(std::move(outputs));
    return nn::cross_entropy(nn::only(std::move(outputs)),
                             {.targets = part(targets_, micro_batch)});
  }
  at::Tensor root(int, const at::Tensor& loss) override {
    return loss / static_cast<double>(count_);
  }
  std::shared_ptr<const nn::SampleKeys> keys(int micro_batch) override {
    return std::make_shared<nn::SampleKeys>(
        nn::SampleKeys{static_cast<uint64_t>(step_), {first_ + micro_batch}});
  }

 private:
  at::Tensor part(const at::Tensor& of, int micro_batch) const {
    return of.narrow(0, first_ + micro_batch, 1);
  }

  const int64_t step_, first_, count_;
  const nn::LossTerms terms_;
  const bool uses_output_loss_;
  at::Tensor inputs_, targets_;
};

struct Course {
  std::vector<double> losses, norms;
  Named evaluated, weights;
};

std::shared_ptr<nn::Model> make_alike(const nn::ModelOptions& options) {
  torch::manual_seed(3);
  return make(options);
}

constexpr double kMostNorm = 0.1;  // below the norms of these steps

std::unique_ptr<optim::FlatOptimizer> adamw(const std::vector<optim::Parameter>& parameters) {
  return optim::make_optimizer(parameters, {.name = "adamw", .lr = 0.01});
}

Course train_alone(const Case& of) {
  const auto model = make_alike(of.model);
  DataParallel alone(*model, comm::local::alone());
  const auto optimizer = adamw(alone.parameters());
  const auto loss_of_part = [&](Samples& samples, int i) {
    auto loss = samples.output_loss(i);
    return samples.loss(i, loss ? model->forward({samples.inputs(i)}, loss)
                                : nn::Tensors{model->forward(samples.inputs(i).front())});
  };
  Course course;
  for (int64_t step = 0; step < of.steps; ++step) {
    Samples samples(of, step, 0, kSamples);
    model->zero_grad();
    double sum = 0;
    for (int i = 0; i < kSamples; ++i) {
      const nn::KeyedDraws draws(samples.keys(i));
      const auto loss = loss_of_part(samples, i);
      std::optional<GradientSync::NoSync> no_sync;
      if (i + 1 < kSamples) no_sync.emplace(alone);
      samples.root(i, loss).backward();
      sum += loss.item<double>() / kSamples;
    }
    alone.finish_backward();
    course.losses.push_back(sum);
    course.norms.push_back(alone.clip_grad_norm(kMostNorm));
    alone.step(*optimizer);
  }
  for (const auto& [name, weight] : nn::named_parameters(*model)) course.weights[name] = weight;
  const at::NoGradGuard no_grad;
  model->eval();
  Samples samples(of, 7, 0, kSamples);
  for (int i = 0; i < 3; ++i) {
    course.evaluated[std::to_string(i)] = model->forward(samples.inputs(i).front());
  }
  return course;
}

// Outputs instead of losses.
class Inputs : public Samples {
 public:
  using Samples::Samples;
  std::shared_ptr<const nn::OutputLoss> output_loss(int) override { return nullptr; }
};

void expect_equal_on(const comm::Group& world, const Case& of, std::shared_ptr<nn::Model> model,
                     const Course& expected) {
  const comm::MeshGroups groups(world, layout::Mesh::parse(of.mesh, world.size()));
  const auto recomputed =
      nn::recompute(*model, nn::recompute_plan(of.recompute, model->blocks().size()));
  const int replicas = groups.data().size();
  ASSERT_EQ(kSamples % replicas, 0);
  const auto micro_batches = static_cast<int>(kSamples / replicas);
  PipelineOptions options{.schedule = of.schedule,
                          .micro_batches = micro_batches,
                          .shards_over_replicas = of.zero > 0,
                          .split_table = split_table(of.model),
                          .sequence_parallel = of.sequence};
  if (of.zero > 0) {
    options.make_exchange = [&](torch::nn::Module& stage, const comm::Group& data) {
      return std::make_unique<Sharded>(
          stage, data, ShardedOptions{.stage = of.zero, .gathers_at_once = of.zero == 3});
    };
  }
  Pipeline pipeline(model, groups, options);
  const auto own = pipeline.parameters();
  const auto optimizer = own.empty() ? nullptr : adamw(own);
  const int64_t first = groups.data().rank() * micro_batches;
  const int tensor = groups.along(layout::Axis::tensor).size();
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    Samples samples(of, static_cast<int64_t>(step), first, micro_batches);
    pipeline.zero_grad();
    const auto losses = pipeline.run(samples);
    const auto sum = at::zeros({}, at::kDouble);
    for (const auto& loss : losses) {
      if (loss.defined()) sum.add_(loss);
    }
    world.all_reduce(sum);
    EXPECT_NEAR(sum.item<double>() / (tensor * kSamples), expected.losses[step], kTolerance);
    const auto norm = at::full({}, pipeline.clip_grad_norm(kMostNorm), at::kDouble);
    EXPECT_NEAR(norm.item<double>(), expected.norms[step], kTolerance);
    EXPECT_GT(norm.item<double>(), kMostNorm);
    const auto of_first = norm.clone();
    world.broadcast(of_first, 0);
    EXPECT_TRUE(of_first.equal(norm)) << "norm on rank " << world.rank();
    pipeline.step_by([&] {
      if (optimizer) optimizer->step();
    });
  }
  model->eval();
  Inputs samples(of, 7, 0, kSamples);
  pipeline.evaluate(samples, 3, [&](int i, nn::Tensors outputs) {
    expect_near(outputs.front(), expected.evaluated.at(std::to_string(i)), "outputs");
  });
  pipeline.make_whole();
  for (const auto& [name, weight] : expected.weights)
    expect_near(named(*model, name), weight, name);
}

void expect_course(const Case& of, const Course& expected) {
  SCOPED_TRACE(of.model.name + ", " + of.mesh + ", " + of.schedule);
  const int ranks = layout::Mesh::parse(of.mesh).ranks();
  std::vector<std::shared_ptr<nn::Model>> models;
  for (int rank = 0; rank < ranks; ++rank) models.push_back(make_alike(of.model));
  comm::local::run(ranks, [&](const comm::Group& world) {
    expect_equal_on(world, of, models[static_cast<size_t>(world.rank())], expected);
  });
}

void expect_one_process(const Case& of) {
  expect_course(of, train_alone(of));
}

nn::ModelOptions deep(nn::ModelOptions options) {
  options.layers = 4;
  return options;
}

TEST(PipelineOfShards, EqualsOneProcessOnThreeAxes) {
  const std::string mesh = "pipeline=2 data=2 tensor=2";
  expect_one_process({.model = mlp(3, 0.3), .mesh = mesh});
  expect_one_process({.model = language("gpt", 0.3, true), .mesh = mesh});
  expect_one_process({.model = language("llama", 0, false, 1), .mesh = mesh, .sequence = true});
}

TEST(PipelineOfShards, EqualsOneProcessWhateverTheOrderOfAxes) {
  expect_one_process(
      {.model = language("llama", 0, true, 2), .mesh = "pipeline=2 tensor=4", .steps = 2});
  expect_one_process(
      {.model = language("gpt", 0, true), .mesh = "tensor=2 data=2 pipeline=1", .steps = 2});
  expect_one_process({.model = language("gpt", 0.3, false),
                      .mesh = "tensor=2 pipeline=2",
                      .sequence = true,
                      .steps = 2});
}

// Weight parts of backward passes must not communicate in another order than the ranks of an axis.
TEST(PipelineOfShards, EqualsOneProcessUnderOtherSchedules) {
  const std::string mesh = "pipeline=2 tensor=2";
  for (const std::string schedule : {"gpipe", "interleaved", "zb-h1", "zb-v"}) {
    expect_one_process({.model = deep(language("llama", 0, true, 1)),
                        .mesh = mesh,
                        .schedule = schedule,
                        .sequence = true,
                        .steps = 2});
    expect_one_process({.model = mlp(6, 0.3), .mesh = mesh, .schedule = schedule, .steps = 2});
  }
}

// The vocabulary of 19 words is cut unevenly. Heads of keys and values have copies, and norms see
// their own tokens, so the ranks sum shards of their gradients.
TEST(PipelineOfShards, ShardsOverReplicas) {
  for (const int zero : {1, 2, 3}) {
    expect_one_process({.model = language("llama", 0, true, 1),
                        .mesh = "pipeline=2 data=2 tensor=2",
                        .sequence = true,
                        .zero = zero,
                        .steps = 2});
    expect_one_process({.model = language("gpt", 0.3, false),
                        .mesh = "pipeline=1 data=3 tensor=2",
                        .recompute = "full",
                        .zero = zero,
                        .steps = 2});
  }
}

// Axes of at most four ranks, and six ranks on the tensor axis.
TEST(PipelineOfShards, EqualsOneProcessOnEveryMeshOfUpToEightRanks) {
  Case of{.model = language("llama", 0, true, 12), .mesh = "", .steps = 1};
  of.model.heads = 12;
  of.model.width = 24;
  of.model.layers = 3;
  const auto expected = train_alone(of);
  int meshes = 0;
  for (int pipeline = 1; pipeline <= 4; ++pipeline) {
    for (int data = 1; pipeline * data <= 8 && data <= 4; ++data) {
      for (const int tensor : {1, 2, 3, 4, 6}) {
        if (pipeline * data * tensor > (tensor == 6 ? 6 : 8)) continue;
        of.mesh = fmt::format("pipeline={} data={} tensor={}", pipeline, data, tensor);
        of.sequence = kLength % tensor == 0 && meshes % 2 == 0;
        of.zero = meshes % 3 == 0 ? 1 : 0;
        expect_course(of, expected);
        ++meshes;
      }
    }
  }
  EXPECT_EQ(meshes, 27);
}

TEST(PipelineOfShards, SmoothsLabelsAndAddsZLoss) {
  for (const std::string mesh : {"pipeline=2 tensor=2", "pipeline=2"}) {
    expect_one_process({.model = language("gpt", 0, true),
                        .mesh = mesh,
                        .steps = 2,
                        .terms = {.label_smoothing = 0.2, .z_loss = 1e-2}});
  }
}

TEST(PipelineOfShards, RecomputesBlocks) {
  expect_one_process({.model = language("gpt", 0.3, true),
                      .mesh = "pipeline=2 tensor=2",
                      .sequence = true,
                      .recompute = "full"});
}

}  // namespace
}  // namespace troika::parallel::mesh_test
