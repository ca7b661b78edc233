// Plans from options, and runs by edited plans.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/config.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/data/make_dataset.h"
#include "troika/nn/sequential.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/run_group.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using layout::Axis;
using layout::Cluster;
using layout::ExchangeMethod;
using layout::Plan;
using testing::HasSubstr;

TrainOptions with_strategy(const std::string& name) {
  TrainOptions options;
  options.trainer.strategy = name;
  return options;
}

// Names of other programs mean the most similar plan.
TEST(ResolvePlan, NamesMeanPlans) {
  struct Meaning {
    std::string name, ours;
    ExchangeMethod method;
    int stage;
    bool finds_unused;
  };
  const auto reduce = ExchangeMethod::all_reduce, zero = ExchangeMethod::zero;
  for (const auto& meaning : std::vector<Meaning>{
           {"ddp", "ddp", reduce, 0, false},
           {"auto", "ddp", reduce, 0, false},
           {"ddp_spawn", "ddp", reduce, 0, false},
           {"ddp_fork_find_unused_parameters_true", "ddp_find_unused_parameters_true", reduce, 0,
            true},
           {"ddp_find_unused_parameters_false", "ddp", reduce, 0, false},
           {"horovod", "horovod", reduce, 0, false},
           {"zero1", "zero1", zero, 1, false},
           {"deepspeed", "zero2", zero, 2, false},
           {"deepspeed_stage_1", "zero1", zero, 1, false},
           {"deepspeed_stage_3", "zero3", zero, 3, false},
           {"sharded", "zero2", zero, 2, false},
           {"fsdp", "zero3", zero, 3, false},
           {"ddp_fully_sharded", "zero3", zero, 3, false},
           {"local_sgd", "local_sgd", ExchangeMethod::local_steps, 0, false},
           {"parameter_server", "parameter_server", ExchangeMethod::servers, 0, false},
           {"downpour", "downpour", ExchangeMethod::downpour, 0, false},
           {"sandblaster", "sandblaster", ExchangeMethod::sandblaster, 0, false},
           {"byteps", "byteps", ExchangeMethod::summation, 0, false},
           {"ft_ddp", "ft_ddp", ExchangeMethod::fault_tolerant, 0, false},
           {"swarm", "swarm", ExchangeMethod::collaborative, 0, false}}) {
    const auto plan = resolve_plan(with_strategy(meaning.name), Cluster::uniform(2, 3));
    EXPECT_EQ(plan.strategy, meaning.ours) << meaning.name;
    EXPECT_EQ(plan.mesh, layout::Mesh(Axis::data, 6)) << meaning.name;
    EXPECT_EQ(plan.exchange.method, meaning.method) << meaning.name;
    EXPECT_EQ(plan.exchange.zero_stage, meaning.stage) << meaning.name;
    EXPECT_EQ(plan.exchange.find_unused_parameters, meaning.finds_unused) << meaning.name;
    EXPECT_EQ(plan.threads, 0) << meaning.name;
  }
}

TEST(ResolvePlan, ReadsTheOptionsOfTheStrategy) {
  auto options = with_strategy("diloco");
  options.trainer.accumulate_grad_batches = 3;
  options.comm.bucket_megabytes = 0.5;
  options.ddp.codec.name = "topk";
  options.trainer.precision = "bf16-mixed";
  options.optimizer.offload = "folder";
  auto plan = resolve_plan(options, Cluster::uniform(1, 2));
  EXPECT_TRUE(plan.exchange.outer.is_on);
  EXPECT_EQ(plan.exchange.period, 500);
  EXPECT_EQ(plan.micro_batches, 3);
  EXPECT_FALSE(plan.sums_micro_batches);
  EXPECT_EQ(plan.exchange.bucket_bytes, 1 << 19);
  EXPECT_EQ(plan.compression.codec, "topk");
  EXPECT_EQ(plan.precision, "bf16-mixed");
  EXPECT_EQ(plan.offload.optimizer, "folder");

  auto dp = with_strategy("dp");
  dp.trainer.devices = 4;
  EXPECT_EQ(resolve_plan(dp, Cluster::uniform(1, 1)).threads, 4);
  dp.trainer.devices = -1;
  EXPECT_EQ(resolve_plan(dp, Cluster::uniform(1, 1)).threads, 1);

  auto horovod = with_strategy("horovod");
  horovod.horovod.backward_passes_per_step = 2;
  plan = resolve_plan(horovod, Cluster::uniform(1, 2));
  EXPECT_EQ(plan.micro_batches, 2);
  EXPECT_TRUE(plan.sums_micro_batches);
}

TEST(ResolvePlan, HybridShardFollowsTheHosts) {
  auto options = with_strategy("hybrid_shard");
  EXPECT_EQ(resolve_plan(options, Cluster::uniform(3, 4)).exchange.zero_group, 4);
  const auto refused =
      "[train] strategy hybrid_shard shares out within nodes; got nodes of different numbers of "
      "ranks, or ranks in turns, expected consecutive ranks, equally many on each node (set "
      "zero.group_size)";
  auto uneven = Cluster::uniform(3, 4);
  uneven.devices[1].count = 2;
  EXPECT_ERROR(resolve_plan(options, uneven), ErrorKind::usage, refused);
  auto turns = Cluster::uniform(2, 1);
  turns.devices = {{.host = 0}, {.host = 1}, {.host = 0}, {.host = 1}};
  EXPECT_ERROR(resolve_plan(options, turns), ErrorKind::usage, refused);
  options.zero.group_size = 2;
  EXPECT_EQ(resolve_plan(options, turns).exchange.zero_group, 2);
}

TEST(ResolvePlan, AGroupsHostsMakeItsCluster) {
  comm::local::run_ranks(comm::local::make(5, {0, 0, 1, 2, 2}), [](const comm::Group& group) {
    const auto cluster = cluster_of(group);
    EXPECT_EQ(cluster.ranks(), 5);
    EXPECT_EQ(cluster.hosts.size(), 3u);
    for (int rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(cluster.devices_of(rank).host, group.nodes()[static_cast<size_t>(rank)]);
    }
  });
}

// A key has an effect on some strategy's plan if and only if is_planned() says so.
TEST(ResolvePlan, PlannedKeysAreThoseThatPlansDependOn) {
  const auto plans = [](const TrainOptions& options) {
    std::vector<std::string> texts;
    for (const auto& name : strategy_names()) {
      auto one = options;
      if (one.trainer.strategy == TrainOptions().trainer.strategy) one.trainer.strategy = name;
      try {
        texts.push_back(resolve_plan(one, Cluster::uniform(1, 1)).text());
      } catch (const Error& problem) {
        texts.emplace_back(problem.what());
      }
    }
    return texts;
  };
  TrainOptions defaults;
  defaults.horovod.backward_passes_per_step = 2;  // without several, their mean is their sum
  const auto before = plans(defaults);
  for (const auto& [key, choices] : make_table(defaults).choices()) {
    if (key == "trainer.plan" || key == "trainer.devices") continue;  // processes, too
    // These decide on the plan once the model is known (tuned_pipeline()).
    if (key == "pipeline.cut_by" || key == "pipeline.activations") continue;
    auto values = choices;
    values.insert(values.end(), {"3", "64", "0.25", "full", "some"});
    bool matters = false;
    for (const auto& value : values) {
      auto options = defaults;
      try {
        make_table(options).set(key, value);
      } catch (const Error&) {
        continue;
      }
      matters = matters || plans(options) != before;
    }
    EXPECT_EQ(is_planned(key), matters) << key;
  }
}

TEST(WithPlan, SetsTheOptionsThatThePlanHas) {
  Plan plan;
  plan.precision = "bf16-mixed";
  plan.recompute = "full";
  plan.micro_batches = 3;
  plan.offload.activations = "a";
  plan.offload.optimizer = "b";
  TrainOptions options;
  options.trainer.plan = plan.text();
  options = with_plan(options);
  EXPECT_EQ(options.trainer.precision, "bf16-mixed");
  EXPECT_EQ(options.trainer.recompute, "full");
  EXPECT_EQ(options.trainer.accumulate_grad_batches, 3);
  EXPECT_EQ(options.offload.activations, "a");
  EXPECT_EQ(options.optimizer.offload, "b");
  plan.precision = "bf17";
  options.trainer.plan = plan.text();
  EXPECT_THROW(with_plan(options), Error);
  options.trainer.plan.clear();
  EXPECT_EQ(with_plan(options).trainer.precision, "bf16-mixed") << "as it was";
}

TEST(RequireRunnable, NamesWhatNoEngineRuns) {
  const auto refused = [](Plan plan, int world) {
    try {
      require_runnable(plan, world);
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return std::string("none");
  };
  const auto on = [](const std::string& mesh) { return Plan{.mesh = layout::Mesh::parse(mesh)}; };
  EXPECT_EQ(refused(on("data=4"), 4), "none");
  EXPECT_EQ(refused(on("pipeline=1 data=4 tensor=1"), 4), "none");
  EXPECT_EQ(
      refused(on("data=4"), 2),
      "[train] a plan for another world; got 4 ranks: mesh.axes data=4, expected 2, the ranks "
      "of this run, or data=-1 for any number");
  EXPECT_EQ(refused(on("pipeline=2 data=2"), 4),
            "[train] a pipeline axis without a schedule of stages; got mesh.axes pipeline=2 data=2 "
            "and schedule.name one_stage, expected a schedule by name, as gpipe, or pipeline=1");
  auto cut = on("pipeline=2 data=2");
  cut.schedule = "gpipe";
  EXPECT_EQ(refused(cut, 4), "none");
  auto uneven = on("pipeline=2 data=2-1");
  uneven.schedule = "gpipe";
  EXPECT_EQ(refused(uneven, 3), "none");
  auto sharded = cut;
  sharded.exchange = {.method = ExchangeMethod::zero, .zero_stage = 1};
  EXPECT_EQ(refused(sharded, 4), "none");
  auto local = cut;
  local.exchange.method = ExchangeMethod::local_steps;
  EXPECT_THAT(refused(local, 4),
              HasSubstr("replicas of a pipeline average gradients in each step; got "
                        "exchange.method local_steps"));
  local.exchange.method = ExchangeMethod::servers;
  EXPECT_THAT(refused(local, 4), HasSubstr("exchange.method servers"));
  auto compressed = cut;
  compressed.compression.codec = "topk";
  EXPECT_THAT(refused(compressed, 4),
              HasSubstr("gradients of a pipeline are not compressed; got ddp.hook topk"));
  auto threads = cut;
  threads.threads = 2;
  EXPECT_THAT(refused(threads, 4), HasSubstr("stages of a pipeline are on processes"));
  auto dual = cut;
  dual.schedule = "dualpipe-v";
  dual.micro_batches = 3;
  EXPECT_THAT(refused(dual, 4), HasSubstr("dualpipe-v"));
  EXPECT_THAT(refused(on("expert=2"), 2), HasSubstr("the expert axis of a plan"));
  EXPECT_EQ(refused({.mesh = layout::Mesh(Axis::data, 2), .stages = {.cut = "stem|head"}}, 2),
            "[train] stages without a schedule of stages; got stages.cut stem|head and "
            "schedule.name one_stage, expected a schedule by name, or no cut");
  Plan torn = on("data=4");
  torn.exchange = {.method = ExchangeMethod::zero, .zero_stage = 2, .zero_group = 3};
  EXPECT_THAT(refused(torn, 4), HasSubstr("groups of ranks that shard a model"));
}

TEST(MemoryOfAPlan, IsThatOfWhatThePlanSays) {
  TrainOptions options;
  options.model = {.name = "mlp", .hidden_layers = 6, .hidden_width = 512};
  options.data.train_samples = 8;
  const auto dataset = data::make_dataset(options.data, data::Split::train);
  compat::count_tensor_memory();
  const auto step = [&](const TrainOptions& of) {
    MemoryPredictor predictor(of, *dataset);
    return predictor.predict(predictor.configured(4)).step.sum();
  };
  const auto why_not = [&](const std::string& text) {
    options.trainer.plan = text;
    const MemoryPredictor predictor(options, *dataset);
    return predictor.why_not(predictor.configured(4));
  };
  const double whole = step(options);
  options.trainer.strategy = "zero3";
  const double shared = step(options);
  EXPECT_LT(shared, 0.9 * whole);
  options.trainer.strategy = TrainOptions().trainer.strategy;
  options.trainer.plan =
      "[mesh]\naxes = \"data=-1\"\n[exchange]\nmethod = \"zero\"\nzero_stage = 3\n";
  // A trial pass measures a few hundred bytes more or less.
  EXPECT_NEAR(step(options), shared, 0.001 * whole);
  EXPECT_EQ(why_not("[mesh]\naxes = \"data=8\"\n"), "mesh data=8 on 4 ranks");
  EXPECT_EQ(why_not("[mesh]\naxes = \"pipeline=2 data=2\"\n"), "stages without a schedule");
  EXPECT_EQ(why_not("[mesh]\naxes = \"data=-1\"\n[stages]\ncut = \"a|b\"\n"),
            "stages without a schedule");
  EXPECT_EQ(why_not("[mesh]\naxes = \"pipeline=1\"\n[schedule]\nname = \"gpipe\"\n"),
            "mesh pipeline=1 on 4 ranks");
}

class PlannedNumbers : public data::Dataset {
 public:
  int64_t size() const override { return 24; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto angles = numbers.to(at::kDouble).unsqueeze(1) * at::tensor({0.7, 1.3, 2.9});
    return {at::sin(angles), at::sin(angles.sum(1)).gt(0).to(at::kLong)};
  }
  int64_t num_classes() const override { return 2; }
  std::vector<int64_t> input_shape() const override { return {3}; }
};

class PlannedRun : public testing::Test {
 protected:
  PlannedRun() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.comm.algorithm = "ring";  // whatever the links measure: topk chooses by bits
    options_.trainer.precision = "64";
    options_.trainer.max_steps = 6;
    options_.trainer.enable_progress_bar = false;
    options_.data.batch_size = 1;
    options_.optimizer.lr = 0.1;
    options_.local_sgd = {.period = 2, .warmup_steps = 1};
    options_.diloco = {.inner_steps = 2, .warmup_steps = 1, .outer_lr = 0.5, .outer_momentum = 0.5};
  }

  // The weights of rank 0 after a run on four ranks.
  static at::Tensor weights(const TrainOptions& options) {
    at::Tensor result;
    const auto train = [&](const comm::Group& group) {
      const auto make = [] {
        auto net = torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(),
                                         torch::nn::Linear(8, 2));
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) {
          parameter.copy_(
              torch::sin(torch::arange(parameter.numel(), torch::kDouble) + 1).view_as(parameter));
        }
        return std::make_shared<Task>(nn::from_sequential(net));
      };
      std::shared_ptr<Task> task = make();
      if (trains_in_threads(options)) {
        task = std::make_shared<ReplicatedTask>(std::vector<std::shared_ptr<Task>>{task});
      }
      const PlannedNumbers numbers;
      Trainer(options, group).fit(*task, numbers, numbers);
      std::vector<at::Tensor> flat;
      for (const auto& parameter : task->module().parameters()) {
        flat.push_back(parameter.detach().flatten());
      }
      if (group.rank() == 0) result = at::cat(flat);
    };
    comm::local::run(4, train, world_options(options).group);
    return result;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

// A plan's text has the same effect as the strategy's name and options.
TEST_F(PlannedRun, IsThatOfItsStrategy) {
  for (const auto* name : {"ddp", "zero1", "zero3", "local_sgd", "post_local_sgd", "diloco", "dp",
                           "horovod", "hybrid_shard"}) {
    auto options = options_;
    options.trainer.strategy = name;
    options.horovod.backward_passes_per_step = 2;
    options.ddp.codec.name = name == std::string("ddp") ? "topk" : "none";
    options.ddp.codec.density = 0.5;
    const auto expected = weights(options);
    auto planned = options_;
    planned.local_sgd = {};
    planned.diloco = {};
    planned.trainer.precision = "32";
    planned.trainer.plan = resolve_plan(options, Cluster::uniform(1, 4)).text();
    EXPECT_LT((weights(planned) - expected).abs().max().item<double>(), 1e-12) << name;
  }
}

TEST_F(PlannedRun, FollowsEdits) {
  options_.trainer.strategy = "zero2";
  auto plan = resolve_plan(options_, Cluster::uniform(1, 4));
  const auto with_one = weights(options_);
  plan.micro_batches = 2;
  plan.exchange.zero_group = 2;
  options_.trainer.plan = plan.text();
  const auto with_two = weights(options_);
  EXPECT_GT((with_two - with_one).abs().max().item<double>(), 1e-6);
  options_.trainer.plan.clear();
  options_.trainer.accumulate_grad_batches = 2;
  EXPECT_LT((weights(options_) - with_two).abs().max().item<double>(), 1e-12);
}

TEST_F(PlannedRun, OfAnotherModelIsRefusedAlsoWithoutBlocks) {
  options_.trainer.plan = "[stages]\nparameters = 7\n";
  Task task(torch::nn::Linear(3, 2));
  const PlannedNumbers numbers;
  EXPECT_ERROR(
      Trainer(options_, comm::local::alone()).fit(task, numbers, numbers), ErrorKind::usage,
      "[train] a plan for another model; got a model of 8 parameters, expected 7, as "
      "stages.parameters of the plan (trainer.plan:2) (search a plan for this model, or set "
      "stages.parameters to 0)");
}

TEST_F(PlannedRun, OfAnotherWorldIsRefused) {
  options_.trainer.plan = "[mesh]\naxes = \"data=3\"\n";
  EXPECT_ERROR(weights(options_), ErrorKind::usage,
               "[train] a plan for another world; got 3 ranks: mesh.axes data=3 (trainer.plan:2), "
               "expected 4, the "
               "ranks of this run, or data=-1 for any number");
  options_.trainer.plan = "[mesh]\naxes = \"data=2 expert=-1\"\n";
  EXPECT_ERROR(weights(options_), ErrorKind::usage,
               "[train] the expert axis of a plan cannot be run yet; got mesh.axes data=2 expert=2 "
               "(trainer.plan:2), expected the axes pipeline, data, tensor and context alone");
  options_.trainer.plan = "[mesh]\naxes = \"data=-1\"\n";
  EXPECT_TRUE(weights(options_).defined());
}

}  // namespace
}  // namespace troika::train
