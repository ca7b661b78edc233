// Pipelines whose stages are sharded over their replicas, and what a rank holds of the model.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "tests/parallel/pipeline_course.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/state.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/pipeline/split_batch.h"
#include "troika/parallel/sharded.h"

namespace troika::parallel {
namespace {

using comm::Group;
using State = std::map<std::string, at::Tensor>;

// Small buckets and no exception for small blocks, so that every parameter is sharded.
PipelineOptions zero(int stage, PipelineOptions options, int group_size = 0) {
  options.shards_over_replicas = true;
  options.make_exchange = [stage, group_size](torch::nn::Module& part, const Group& data) {
    return std::make_unique<Sharded>(
        part, data,
        ShardedOptions{.stage = stage,
                       .group_size = group_size,
                       .keep_elements = 0,
                       .gathers_at_once = stage == 3,
                       .data_parallel = {.bucket_bytes = 512, .first_bucket_bytes = 128}});
  };
  return options;
}

optim::OptimizerOptions adam() {
  return {.name = "adamw", .lr = 0.03};
}

State state_of(const torch::nn::Module& module) {
  State result;
  for (const auto& [name, tensor] : nn::named_state(module)) result[name] = tensor.detach().clone();
  return result;
}

constexpr int kSteps = 3;
constexpr double kNorm = 0.03;  // clips

struct Steps {
  State state;                // after the last step
  std::vector<double> norms;  // of all gradients, before clipping
};

// Steps of one process on the micro-batches of all replicas.
Steps steps_alone(const std::string& model, int64_t samples, int micro_batches) {
  const auto of = pipeline_case_alone(model, samples);
  const auto optimizer = optim::make_optimizer(parallel::trained_parameters(*of.model), adam());
  Steps result;
  for (int step = 0; step < kSteps; ++step) {
    const double norm = accumulate(of, micro_batches).norm;
    EXPECT_GT(norm, kNorm) << model;
    for (const auto& parameter : of.model->parameters()) parameter.grad().mul_(kNorm / norm);
    optimizer->step();
    result.norms.push_back(norm);
  }
  result.state = state_of(*of.model);
  return result;
}

// The part of the case for a replica.
PipelineCase part_of(const std::string& model, int64_t samples, int replicas, int replica) {
  auto of = pipeline_case_alone(model, samples * replicas);
  const auto part = [&](at::Tensor& whole) {
    if (whole.defined()) whole = whole.tensor_split(replicas)[static_cast<size_t>(replica)];
  };
  part(of.inputs);
  part(of.targets);
  part(of.captions);
  of.first_sample = replica * samples;
  return of;
}

void expect_steps(int ranks, const std::string& mesh, const std::string& model, int64_t samples,
                  const PipelineOptions& options) {
  const auto parsed = layout::Mesh::parse(mesh, ranks);
  const int replicas = parsed.sample_shares();
  const auto expected = steps_alone(model, samples * replicas, options.micro_batches * replicas);
  comm::local::run(ranks, [&](Group world) {
    SCOPED_TRACE(options.schedule + ", " + mesh + ", " + model);
    const comm::MeshGroups groups(world, parsed);
    const int replica = replicas == 1 ? 0 : groups.data().rank();
    const auto own = part_of(model, samples, replicas, replica);
    Pipeline pipeline(own.model, groups, options);
    const auto optimizer = optim::make_optimizer(pipeline.parameters(), adam());
    CaseBatches batches(own, options.micro_batches);
    for (int step = 0; step < kSteps; ++step) {
      pipeline.zero_grad();
      pipeline.run(batches);
      EXPECT_NEAR(pipeline.clip_grad_norm(kNorm), expected.norms[static_cast<size_t>(step)], 1e-10);
      pipeline.step(*optimizer);
    }
    pipeline.make_whole();
    const auto found = state_of(*own.model);
    ASSERT_EQ(found.size(), expected.state.size());
    for (const auto& [name, tensor] : expected.state) {
      EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), 1e-10)
          << name << " on rank " << world.rank();
    }
  });
}

TEST(PipelineZero, StepsAsOneProcess) {
  for (const int stage : {1, 2, 3}) {
    for (const std::string schedule : {"1f1b", "zb-v", "interleaved"}) {
      expect_steps(4, "pipeline=2 data=2", "gpt", 6,
                   zero(stage, {.schedule = schedule, .micro_batches = 4}));
    }
    expect_steps(6, "pipeline=3 data=2", "skips", 5, zero(stage, {.micro_batches = 3}));
    expect_steps(6, "data=3 pipeline=2", "mlp", 6,
                 zero(stage, {.schedule = "zb-h1", .micro_batches = 3}));
    expect_steps(4, "pipeline=2 data=2", "unet", 4, zero(stage, {.micro_batches = 2}));
  }
}

TEST(PipelineZero, StepsAsOneProcessOnUnevenReplicas) {
  for (const int stage : {1, 2, 3}) {
    expect_steps(4, "pipeline=3 data=2-1-1", "mlp", 7, zero(stage, {.micro_batches = 5}));
    expect_steps(6, "pipeline=3 data=1-3-2", "unet", 7,
                 zero(stage, {.schedule = "gpipe", .micro_batches = 4}));
  }
}

// Groups of two of the four replicas hold a stage each.
TEST(PipelineZero, ShardsWithinGroupsOfReplicas) {
  for (const int stage : {2, 3}) {
    expect_steps(8, "pipeline=2 data=4", "gpt", 4, zero(stage, {.micro_batches = 2}, 2));
  }
}

TEST(PipelineZero, RefusesATiedParameterOnUnevenReplicas) {
  comm::local::run(3, [](Group world) {
    const auto of = pipeline_case_alone("gpt", 4);
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2 data=2-1"));
    const auto make = [&] { Pipeline(of.model, groups, zero(1, {.micro_batches = 2})); };
    EXPECT_ERROR(
        make(), ErrorKind::usage,
        "[parallel] a parameter that stages on several ranks use is sharded over "
        "replicas; got transformer.wte.weight on stages with different numbers of replicas, "
        "expected as many replicas of each stage (or a cut that keeps the parameter on "
        "one rank)");
  });
}

int64_t bytes_of(const std::vector<optim::Parameter>& parameters) {
  int64_t sum = 0;
  for (const auto& parameter : parameters) sum += static_cast<int64_t>(parameter.tensor.nbytes());
  return sum;
}

// Bytes of memory behind a module's parameters.
size_t present(const torch::nn::Module& module) {
  size_t sum = 0;
  for (const auto& parameter : module.parameters()) sum += parameter.storage().nbytes();
  return sum;
}

// Parameters are there from the gather to the reduction, once a step whatever the number of
// micro-batches.
TEST(PipelineZero, GathersAndReducesOncePerStageAndStep) {
  std::map<int, int64_t> bytes;  // that rank 0's exchange sends in a step, by micro-batches
  for (const int micro_batches : {2, 8}) {
    std::mutex mutex;
    comm::local::run(4, [&](Group world) {
      const auto of = pipeline_case_alone("mlp", 8);
      const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2 data=2"));
      Pipeline pipeline(of.model, groups, zero(3, {.micro_batches = micro_batches}));
      ASSERT_TRUE(pipeline.shards_parameters());
      auto& part = dynamic_cast<Sharded&>(pipeline.exchanges().front().exchange);
      const auto& module = pipeline.exchanges().front().module;
      EXPECT_EQ(present(module), 0u);
      const auto before = part.counters().bytes;
      pipeline.run(of.inputs, of.targets, of.loss);
      EXPECT_EQ(present(module), 0u);
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) bytes[micro_batches] = part.counters().bytes - before;
      // About half of the stage: the shards of the other replica are there.
      size_t whole = 0;
      for (const auto& parameter : module.parameters()) whole += parameter.nbytes();
      EXPECT_NEAR(static_cast<double>(bytes_of(pipeline.parameters())),
                  static_cast<double>(whole) / 2, 64 * sizeof(double));
    });
  }
  EXPECT_GT(bytes.at(2), 0);
  EXPECT_EQ(bytes.at(2), bytes.at(8));
}

TEST(PipelineTensors, HoldsOnlyTheStagesOfTheRank) {
  comm::local::run(3, [](Group world) {
    const auto of = pipeline_case_alone("skips", 6);
    const auto before = state_of(*of.model);
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=3"));
    Pipeline pipeline(of.model, groups, {.micro_batches = 3});
    const std::set<std::string> own = [&] {
      std::set<std::string> names;
      for (const auto& parameter : pipeline.parameters()) names.insert(parameter.name);
      return names;
    }();
    EXPECT_TRUE(lacks_tensors(*of.model));
    for (const auto& [name, tensor] : nn::named_state(*of.model)) {
      EXPECT_EQ(is_left_out(tensor), !own.contains(name)) << name << " on rank " << world.rank();
      if (own.contains(name)) continue;
      EXPECT_TRUE(tensor.isnan().all().item<bool>()) << name;
      EXPECT_EQ(tensor.storage().nbytes(), sizeof(double)) << name;
    }
    pipeline.run(of.inputs, of.targets, of.loss);
    pipeline.make_whole();
    EXPECT_FALSE(lacks_tensors(*of.model));
    for (const auto& [name, tensor] : before) {
      EXPECT_TRUE(state_of(*of.model).at(name).equal(tensor)) << name;
    }
  });
}

// All micro-batches of a step count for the running statistics of each replica, as in one process.
TEST(PipelineTensors, MergesRunningStatisticsOfReplicasThatShareMicroBatches) {
  comm::local::run(4, [](Group world) {
    auto model = std::make_shared<nn::Model>();
    const auto norm = model->place("norm", nn::BatchNorm(torch::nn::BatchNormOptions(3)));
    const auto last = model->place("last", torch::nn::Linear(3, 2));
    model->add_block({"norm", {"norm"}, {}, [=](const at::Tensor& x) { return norm->forward(x); }});
    model->add_block(
        {"last", {"last"}, {}, [=](const at::Tensor& x) mutable { return last->forward(x); }});
    model->to(at::kDouble);
    const auto inputs = at::cos(at::arange(36, at::kDouble)).view({12, 3}) * 2 + 1;
    const auto targets = at::zeros({12, 2}, at::kDouble);
    const auto loss = [](const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(x, y); };
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2 data=3-1"));
    Pipeline pipeline(model, groups, {.micro_batches = 5});
    // In the second step two replicas have no micro-batch.
    SplitBatch source(inputs, targets, 5, loss);
    auto mean = at::zeros({3}, at::kDouble), variance = at::ones({3}, at::kDouble);
    for (const int count : {5, 1}) {
      pipeline.zero_grad();
      pipeline.run(source, 0, count);
      const auto values = count == 5 ? inputs : inputs.tensor_split(5)[0];
      mean = mean.lerp(values.mean(0), 0.1);
      variance = variance.lerp(values.var(0), 0.1);
      if (world.rank() > 2) continue;
      EXPECT_TRUE(norm->running_mean.allclose(mean, 1e-10, 1e-12)) << world.rank();
      EXPECT_TRUE(norm->running_var.allclose(variance, 1e-10, 1e-12)) << world.rank();
    }
  });
}

// A shorter step may have fewer micro-batches than replicas.
TEST(PipelineTensors, SumsOverTheReplicasThatHaveMicroBatches) {
  const auto of = pipeline_case("mlp", 10);
  const auto gradients_of = [&](int begin, int end, CaseBatches& batches) {
    of.model->zero_grad();
    for (int i = begin; i < end; ++i) {
      batches.root(i, batches.loss(i, of.model->forward(batches.inputs(i)))).backward();
    }
    State result;
    for (const auto& [name, parameter] : nn::trained_parameters(*of.model)) {
      result[name] = parameter.grad().clone();
    }
    return result;
  };
  for (const int stage : {0, 2, 3}) {
    const PipelineOptions plain{.schedule = "gpipe", .micro_batches = 5};
    const auto options = stage == 0 ? plain : zero(stage, plain);
    CaseBatches all(of, 5);
    std::vector<State> expected;
    for (const int end : {1, 2, 5}) expected.push_back(gradients_of(0, end, all));
    comm::local::run(5, [&](Group world) {
      const auto own = pipeline_case_alone("mlp", 10);
      const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=3 data=1-3-1"));
      Pipeline pipeline(own.model, groups, options);
      CaseBatches batches(own, 5);
      size_t next = 0;
      for (const int end : {1, 2, 5}) {
        pipeline.zero_grad();
        pipeline.run(batches, 0, end);
        const auto& gradients = expected[next++];
        for (const auto& parameter : pipeline.parameters()) {
          if (parameter.tensor.numel() == 0) continue;
          auto wanted = gradients.at(parameter.name);
          if (parameter.box) {
            wanted = wanted.reshape({-1}).narrow(0, parameter.box->flat->begin,
                                                 parameter.tensor.numel());
          }
          EXPECT_TRUE(
              parameter.tensor.grad().reshape({-1}).allclose(wanted.reshape({-1}), 1e-10, 1e-12))
              << parameter.name << " of " << end << " on rank " << world.rank();
        }
      }
    });
  }
}

}  // namespace
}  // namespace troika::parallel
