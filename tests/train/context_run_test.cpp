// Runs with a context axis.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/checkpointed_runs.h"
#include "troika/train/loop/run_origin.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {
namespace {

class ContextRun : public CheckpointedRuns {
 protected:
  ContextRun() { options_.trainer.max_epochs = 1; }

  TrainOptions cut(int context, const std::string& method = "ring") const {
    auto options = options_;
    options.trainer.strategy = "cp";
    options.mesh.context = context;
    options.mesh.context_method = method;
    return options;
  }

  void expect_refused(const TrainOptions& options, int ranks, const std::string& model,
                      const std::string& message) {
    comm::local::run(ranks, [&](const comm::Group& world) {
      auto own = options;
      own.run.folder = (folder_ / "refused").string();
      Task task(make_sized_model(model));
      const SizedSamples samples(sizes_of(model));
      try {
        Trainer(own, world).fit(task, samples, samples);
        ADD_FAILURE() << "not refused; expected: " << message;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_THAT(error.what(), testing::HasSubstr(message));
      }
    });
  }
};

TEST_F(ContextRun, EqualsOneProcess) {
  for (const std::string model : {"gpt8-dropout", "llama8"}) {
    const auto alone = fit(accumulating(2), 1, model);
    for (const std::string method : {"ring", "all_to_all"}) {
      auto options = cut(2, method);
      options.trainer.accumulate_grad_batches = 2;
      expect_same_course(fit(options, 4, model), alone, model + ", " + method);
    }
  }
}

TEST_F(ContextRun, EqualsOneProcessBesideOtherAxes) {
  const auto alone = fit(accumulating(2), 1, "gpt8-dropout");
  struct Mesh {
    std::string axes, schedule = "1f1b";
    bool sequence = false;
  };
  for (const auto& [axes, schedule, sequence] :
       {Mesh{"context=2 tensor=2", "1f1b", true}, Mesh{"pipeline=2 data=2 context=2"},
        Mesh{"pipeline=2 context=2 tensor=2"}, Mesh{"pipeline=2 context=2", "zb-v"}}) {
    auto options = options_;
    options.trainer.strategy = "3d";
    options.mesh.axes = axes;
    options.mesh.sequence_parallel = sequence;
    options.pipeline.schedule = schedule;
    options.pipeline.micro_batches = 2;
    expect_same_course(fit(options, layout::Mesh::parse(axes).ranks(), "gpt8-dropout"), alone,
                       axes);
  }
}

TEST_F(ContextRun, EqualsOneProcessWithZeroAndRecomputation) {
  const auto alone = fit(options_, 1, "llama8");
  for (const int stage : {1, 3}) {
    auto options = cut(2);
    options.zero.stage = stage;
    options.trainer.recompute = "full";
    expect_same_course(fit(options, 4, "llama8"), alone, "zero" + std::to_string(stage));
  }
}

// Sums of halves are rounded in another order there.
TEST_F(ContextRun, UnderAutocastIsCloseToOneProcess) {
  options_.trainer.precision = "bf16-mixed";
  options_.optimizer.lr = 0.002;
  const auto alone = fit(options_, 1, "llama8");
  for (const std::string method : {"ring", "all_to_all"}) {
    const auto found = fit(cut(2, method), 2, "llama8");
    EXPECT_EQ(found.summary.steps, alone.summary.steps);
    EXPECT_NEAR(found.summary.train_loss, alone.summary.train_loss, 0.01) << method;
    EXPECT_NEAR(found.summary.validation_loss, alone.summary.validation_loss, 0.01) << method;
  }
}

TEST_F(ContextRun, GoesOnAsIfItHadNotStopped) {
  auto options = cut(2);
  const auto whole = fit(options, 4, "gpt8-dropout");
  options.run.folder = (folder_ / "cut").string();
  options.trainer.max_steps = 5;
  fit(options, 4, "gpt8-dropout");
  options.trainer.max_steps = -1;
  options.trainer.ckpt_path = "last";
  const auto resumed = fit(options, 4, "gpt8-dropout");
  EXPECT_EQ(resumed.summary.steps, whole.summary.steps);
  for (const auto& [name, tensor] : whole.state) {
    EXPECT_TRUE(resumed.state.at(name).equal(tensor)) << name;
  }
  EXPECT_EQ(resumed.summary.train_loss, whole.summary.train_loss);
}

TEST_F(ContextRun, CheckpointsBelongToTheModel) {
  struct Layout {
    std::string strategy;
    int ranks, context = -1, tensor = -1;
  };
  auto options = cut(2);
  options.run.folder = (folder_ / "first").string();
  options.trainer.max_steps = 2;
  fit(options, 2, "llama8");
  auto latest = folder_ / "first/run/checkpoints/last";
  for (const auto& [strategy, ranks, context, tensor] :
       {Layout{"ddp", 1}, Layout{"cp", 4, 4}, Layout{"tp", 4, 2, 2}, Layout{"zero1", 2},
        Layout{"cp", 2, 2}}) {
    auto next = options_;
    next.trainer.strategy = strategy;
    next.mesh.context = context;
    next.mesh.tensor = tensor;
    latest = pass_on(latest, next, ranks, "llama8");
  }
}

// The ranks of a context axis have had the same samples, which count once.
TEST_F(ContextRun, AnotherMeshGoesOnWithTheLossOfTheEpoch) {
  const auto whole = fit(options_, 1, "llama8");
  auto options = cut(2);
  options.run.folder = (folder_ / "cut").string();
  options.trainer.max_steps = 5;
  fit(options, 2, "llama8");
  auto next = options_;
  next.trainer.ckpt_path = (folder_ / "cut/run/checkpoints/last").string();
  EXPECT_NEAR(fit(next, 1, "llama8").summary.train_loss, whole.summary.train_loss, 1e-10);
}

TEST_F(ContextRun, RefusesWhatDoesNotFit) {
  expect_refused(cut(2), 2, "gpt",
                 "the tokens cannot be cut over the context axis; got 5 tokens, 2 ranks");
  expect_refused(cut(4, "all_to_all"), 4, "gpt8", "got 2 heads, 4 ranks");
  expect_refused(cut(2), 3, "gpt8", "mesh.context and mesh.data do not fit the ranks of this run");
  expect_refused(cut(2), 2, "mlp", "block layers.0, and no nn::Embedding of tokens");
  expect_refused(cut(2), 2, "resnet20", "module conv1");
  auto options = cut(2);
  options.trainer.strategy = "ddp";
  expect_refused(options, 2, "gpt8",
                 "strategy ddp does not cut samples, so it takes no "
                 "mesh.context; got 2");
  options.mesh.context = -1;
  options.mesh.context_method = "all_to_all";
  expect_refused(options, 2, "gpt8", "it takes no mesh.context_method; got all_to_all");
  options.trainer.strategy = "downpour";
  options.mesh.context = 2;
  options.mesh.context_method = "ring";
  expect_refused(options, 4, "gpt8", "got mesh.axes pipeline=1 data=2 context=2 tensor=1");
  options.trainer.strategy = "tp";
  expect_refused(options, 3, "gpt8", "mesh.context does not fit the ranks of this run; got 2 on 3");
  options = cut(2);
  options.ddp.codec.name = "int8";
  expect_refused(options, 2, "gpt8",
                 "a context axis does not combine with compressed gradients yet");
  options = cut(2);
  options.trainer.recompute = "budget:1MiB";
  expect_refused(options, 2, "gpt8",
                 "a context axis does not combine with recomputation by measured times yet");
}

TEST_F(ContextRun, RefusesASecondMeshBesideTheAxes) {
  for (const std::string strategy : {"cp", "tp", "3d", "1f1b"}) {
    for (const std::string axis : {"context", "tensor"}) {
      auto options = options_;
      options.trainer.strategy = strategy;
      options.mesh.axes = "pipeline=2 context=2 tensor=2";
      (axis == "context" ? options.mesh.context : options.mesh.tensor) = 1;
      EXPECT_ERROR(resolve_plan(options, layout::Cluster::uniform(1, 8)), ErrorKind::usage,
                   "[train] mesh.axes and the sizes of axes both give the mesh; got mesh.axes "
                   "pipeline=2 context=2 tensor=2, mesh." +
                       axis + " 1, expected mesh.axes alone, or no mesh.axes");
    }
  }
}

TEST_F(ContextRun, APlanOfReplicasHasNoContextAxis) {
  auto options = options_;
  options.trainer.strategy = "downpour";
  options.mesh.pipeline = 2;
  auto plan = resolve_plan(options, layout::Cluster::uniform(1, 4));
  plan.mesh = layout::Mesh::parse("data=2 pipeline=2 context=2");
  EXPECT_ERROR(require_runnable(layout::Plan::parse(plan.text(), "plan"), 8), ErrorKind::usage,
               "[train] a context axis does not combine with replicas that train by themselves; "
               "got exchange.method downpour_sgd with mesh.axes data=2 pipeline=2 context=2, "
               "expected exchange.method all_reduce");
}

// All ranks that compute the same samples draw the same numbers.
TEST(RandomStateOfARun, IsTheSameAlongAContextAndATensorAxis) {
  const auto data = layout::Mesh::parse("data=2");
  const auto cut = layout::Mesh::parse("data=2 context=2 tensor=2");
  const auto sources = [](const layout::Mesh& saved, const layout::Mesh& now) {
    std::vector<std::optional<int>> result;
    for (int rank = 0; rank < now.ranks(); ++rank) {
      result.push_back(source_of_random(saved, now, rank));
    }
    return result;
  };
  EXPECT_THAT(sources(data, cut), testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(sources(cut, data), testing::ElementsAre(0, 4));
  const auto more = layout::Mesh::parse("data=2 context=2");
  EXPECT_THAT(sources(layout::Mesh::parse("context=2"), more),
              testing::ElementsAre(0, 0, std::nullopt, std::nullopt));
}

}  // namespace
}  // namespace troika::train
