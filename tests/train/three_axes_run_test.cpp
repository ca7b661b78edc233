// Runs on meshes with a pipeline, a data and a tensor axis.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/checkpointed_runs.h"
#include "troika/parallel/pipeline/left_out.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/task/replicated_task.h"

namespace troika::train {
namespace {

struct Sizes {
  int pipeline, data, tensor;

  int ranks() const { return pipeline * data * tensor; }
};

class ThreeAxesRun : public CheckpointedRuns {
 protected:
  ThreeAxesRun() { options_.trainer.max_epochs = 1; }

  static TrainOptions on(TrainOptions options, const Sizes& sizes) {
    options.trainer.strategy = "3d";
    options.mesh.pipeline = sizes.pipeline;
    options.mesh.data = sizes.data;
    options.mesh.tensor = sizes.tensor;
    return options;
  }

  // Refused on all ranks of a pipeline of two ranks whose layers two ranks compute.
  void expect_refused(const std::function<void(TrainOptions&)>& change, const std::string& model,
                      const std::string& message) {
    auto options = on(options_, {2, 1, 2});
    options.run.folder = (folder_ / "refused").string();
    change(options);
    comm::local::run(4, [&](const comm::Group& world) {
      Task task(make_sized_model(model));
      const SizedSamples samples(sizes_of(model));
      try {
        Trainer(options, world).fit(task, samples, samples);
        ADD_FAILURE() << "not refused; expected: " << message;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_THAT(error.what(), testing::HasSubstr(message));
      }
    });
  }
};

TEST_F(ThreeAxesRun, EqualsOneProcess) {
  for (const std::string model : {"mlp", "gpt-dropout", "llama"}) {
    auto options = on(options_, {2, 2, 2});
    options.pipeline.micro_batches = 2;
    options.mesh.sequence_parallel = model == "llama";
    expect_same_course(fit(options, 8, model), fit(accumulating(2), 1, model), model);
  }
}

TEST_F(ThreeAxesRun, EqualsOneProcessOnOtherMeshesAndSchedules) {
  const auto alone = fit(accumulating(4), 1, "llama");
  for (const auto& [axes, schedule] :
       {std::pair("tensor=2 pipeline=2", "zb-h1"), std::pair("pipeline=1 data=2 tensor=2", "gpipe"),
        std::pair("pipeline=2 tensor=1 data=1", "1f1b")}) {
    auto options = on(options_, {-1, -1, -1});
    options.mesh.axes = axes;
    options.pipeline.schedule = schedule;
    options.pipeline.micro_batches = 4;
    expect_same_course(fit(options, layout::Mesh::parse(axes).ranks(), "llama"), alone, axes);
  }
}

TEST_F(ThreeAxesRun, EqualsOneProcessWithZeroAndRecomputation) {
  auto options = on(options_, {2, 2, 2});
  options.pipeline.micro_batches = 2;
  options.zero.stage = 1;
  options.trainer.recompute = "full";
  expect_same_course(fit(options, 8, "gpt-dropout"), fit(accumulating(2), 1, "gpt-dropout"),
                     "zero1, recomputed");
}

// Sums of halves are rounded in another order there.
TEST_F(ThreeAxesRun, UnderAutocastIsCloseToOneProcess) {
  options_.trainer.precision = "bf16-mixed";
  options_.optimizer.lr = 0.002;
  options_.trainer.recompute = "full";
  const auto alone = fit(accumulating(2), 1, "llama");
  auto options = on(options_, {2, 2, 2});
  options.pipeline.micro_batches = 2;
  options.zero.stage = 1;
  const auto found = fit(options, 8, "llama");
  EXPECT_EQ(found.summary.steps, alone.summary.steps);
  EXPECT_NEAR(found.summary.train_loss, alone.summary.train_loss, 0.01);
  EXPECT_NEAR(found.summary.validation_loss, alone.summary.validation_loss, 0.01);
}

// LAMB's rates depend on norms of whole parameters.
TEST_F(ThreeAxesRun, NormsAreThoseOfWholeParameters) {
  options_.optimizer.name = "lamb";
  options_.statistics.every_n_steps = 1;
  auto options = on(options_, {2, 1, 2});
  options.pipeline.micro_batches = 2;
  const auto alone = fit(accumulating(2), 1, "gpt"), found = fit(options, 4, "gpt");
  expect_same_course(found, alone, "lamb");
  ASSERT_EQ(found.rows.size(), alone.rows.size());
  int norms = 0;
  for (size_t i = 0; i < alone.rows.size(); ++i) {
    for (const auto& [name, value] : alone.rows[i].second) {
      if (!name.starts_with("gradient_") && !name.starts_with("weight_")) continue;
      EXPECT_NEAR(std::stod(found.rows[i].second.at(name)), std::stod(value), 1e-9) << name;
      ++norms;
    }
  }
  EXPECT_GT(norms, 100);
}

// Stopped in the middle of the only epoch, and resumed.
TEST_F(ThreeAxesRun, GoesOnAsIfItHadNotStopped) {
  auto options = on(options_, {2, 2, 2});
  options.pipeline.micro_batches = 2;
  const auto whole = fit(options, 8, "gpt-dropout");
  options.run.folder = (folder_ / "cut").string();
  options.trainer.max_steps = 3;
  fit(options, 8, "gpt-dropout");
  options.trainer.max_steps = -1;
  options.trainer.ckpt_path = "last";
  const auto resumed = fit(options, 8, "gpt-dropout");
  EXPECT_EQ(resumed.summary.steps, whole.summary.steps);
  for (const auto& [name, tensor] : whole.state) {
    EXPECT_TRUE(resumed.state.at(name).equal(tensor)) << name;
  }
  EXPECT_EQ(resumed.summary.train_loss, whole.summary.train_loss);
  EXPECT_EQ(resumed.summary.validation_loss, whole.summary.validation_loss);
}

// Any mesh can resume from the checkpoint of any other, which holds whole tensors without padding,
// and goes on with the samples that one process uses next.
TEST_F(ThreeAxesRun, CheckpointsBelongToTheModel) {
  options_.data.global_batch_size = 8;  // 5 steps in the only epoch
  options_.pipeline.micro_batches = 1;
  auto alone = options_;
  alone.trainer.max_steps = 3;
  const auto third_step = fit(alone, 1, "llama-eighths");
  auto options = on(options_, {2, 2, 2});
  options.run.folder = (folder_ / "first").string();
  options.trainer.max_steps = 2;
  const auto course = fit(options, 8, "llama-eighths");
  auto latest = folder_ / "first/run/checkpoints/last";
  const auto expected = kept(latest);
  for (const auto& [name, tensor] : course.state) {
    EXPECT_TRUE(expected.at("model." + name).equal(tensor)) << name;
  }
  EXPECT_EQ(expected.at("optimizer.state.model.embed_tokens.weight.exp_avg").size(0), 13);
  const auto with = [&](const std::string& strategy, int tensor = -1) {
    auto next = options_;
    next.trainer.strategy = strategy;
    next.mesh.tensor = tensor;
    return next;
  };
  const auto on_mesh = [&](const Sizes& sizes, int zero = 0) {
    auto next = on(options_, sizes);
    next.zero.stage = zero;
    return std::pair(next, sizes.ranks());
  };
  for (const auto& [next, ranks] :
       {on_mesh({1, 1, 1}), on_mesh({2, 2, 2}), on_mesh({8, 1, 1}), on_mesh({2, 2, 2}, 1),
        on_mesh({1, 8, 1}), on_mesh({2, 2, 2}), on_mesh({1, 1, 8}), on_mesh({2, 2, 2}, 1),
        on_mesh({4, 2, 1}), on_mesh({2, 2, 2}), std::pair(with("ddp"), 1),
        std::pair(with("tp", 4), 4), std::pair(with("1f1b"), 2), std::pair(with("zero2"), 2),
        on_mesh({1, 4, 2}, 1), on_mesh({2, 1, 4})}) {
    latest = pass_on(latest, next, ranks, "llama-eighths");
    const auto mesh = fmt::format("{} on {} ranks", next.trainer.strategy, ranks);
    EXPECT_EQ(passed_.summary.steps, 3) << mesh;
    expect_close(passed_.state, third_step.state, mesh);
  }
}

// No rank has the whole model in the run. Then each loads it.
TEST_F(ThreeAxesRun, JudgesACheckpointInTheSameProgram) {
  auto options = on(options_, {2, 1, 2});
  options.pipeline.micro_batches = 2;
  options.run.folder = folder_.path().string();
  options.model = sizes_of("gpt");
  std::mutex mutex;
  comm::local::run(4, [&](const comm::Group& world) {
    const auto task = [&] {
      const std::lock_guard lock(mutex);
      return make_task_to_fit(options);
    }();
    const SizedSamples samples(options.model);
    Trainer trainer(options, world);
    const auto summary = trainer.fit(*task, samples, samples);
    EXPECT_TRUE(parallel::lacks_tensors(task->module())) << world.rank();
    trainer.save_checkpoint(folder_ / "saved");
    const auto judged = trainer.validate(*task, samples, "last");
    EXPECT_EQ(judged.at(0).first, "validation/loss");
    EXPECT_NEAR(judged.at(0).second, summary.validation_loss, 1e-10);
  });
  const auto saved = kept(folder_ / "saved"), last = kept(folder_ / "run/checkpoints/last");
  ASSERT_EQ(saved.size(), last.size());
  for (const auto& [name, tensor] : last) EXPECT_TRUE(saved.at(name).equal(tensor)) << name;
}

// Each rank takes its part of the gradients so far.
TEST_F(ThreeAxesRun, GoesOnWithAStepThatAnotherStrategyLeft) {
  const auto left = folder_ / "left";
  const auto whole = fit(accumulating(4), 2, "gpt", [&](Trainer& trainer, Task&) {
    trainer.add(std::make_shared<SavesInAStep>(left));
  });
  auto options = on(options_, {2, 1, 2});
  options.pipeline.micro_batches = 4;
  options.trainer.ckpt_path = left.string();
  const auto course = fit(options, 4, "gpt");
  EXPECT_EQ(course.summary.steps, whole.summary.steps);
  expect_close(course.state, whole.state, "3d");
}

TEST_F(ThreeAxesRun, MeshOptionsLeaveTheRestToOneAxis) {
  const auto mesh_of = [&](const Sizes& sizes, int ranks) {
    return resolve_plan(on(options_, sizes), layout::Cluster::uniform(1, ranks)).mesh.text();
  };
  EXPECT_EQ(mesh_of({2, 2, 2}, 8), "pipeline=2 data=2 tensor=2");
  EXPECT_EQ(mesh_of({2, -1, 2}, 8), "pipeline=2 data=2 tensor=2");
  EXPECT_EQ(mesh_of({2, -1, -1}, 8), "pipeline=2 data=4 tensor=1");
  EXPECT_EQ(mesh_of({-1, -1, -1}, 8), "pipeline=1 data=8 tensor=1");
  EXPECT_EQ(mesh_of({-1, 2, 2}, 8), "pipeline=2 data=2 tensor=2");
  EXPECT_ERROR(mesh_of({2, 2, 2}, 6), ErrorKind::usage,
               "[train] mesh.pipeline, mesh.data and mesh.tensor do not fit the ranks of this run; "
               "got mesh.pipeline 2, mesh.data 2, mesh.tensor 2 on 6 ranks, expected sizes whose "
               "product is the number of ranks, or -1 for one of them");
  EXPECT_ERROR(mesh_of({2, -1, 2}, 6), ErrorKind::usage,
               "[train] mesh.pipeline, mesh.data and mesh.tensor do not fit the ranks of this run; "
               "got mesh.pipeline 2, mesh.data -1, mesh.tensor 2 on 6 ranks, expected sizes whose "
               "product is the number of ranks, or -1 for one of them");
  EXPECT_ERROR(mesh_of({-1, 2, -1}, 8), ErrorKind::usage,
               "[train] the sizes of the mesh's axes leave two open; got mesh.pipeline -1, "
               "mesh.data 2, mesh.tensor -1 on 8 ranks, expected mesh.pipeline or mesh.tensor, or "
               "no mesh.data");
  auto options = on(options_, {2, -1, -1});
  options.mesh.axes = "pipeline=2 tensor=2";
  EXPECT_ERROR(resolve_plan(options, layout::Cluster::uniform(1, 4)), ErrorKind::usage,
               "[train] mesh.axes and the sizes of axes both give the mesh; got mesh.axes "
               "pipeline=2 tensor=2, mesh.pipeline 2, expected mesh.axes alone, or no mesh.axes");
}

TEST_F(ThreeAxesRun, RefusesWhatDoesNotFit) {
  const auto combine = [](const std::string& with) {
    return "a tensor axis does not combine with " + with + " yet";
  };
  const auto with_axes = [](const char* axes) {
    return [axes](TrainOptions& of) {
      of.mesh = {};
      of.mesh.axes = axes;
    };
  };
  expect_refused(with_axes("pipeline=1 tensor=4"), "gpt", "2 heads, 4 ranks");
  expect_refused([](auto&) {}, "unet", "no rule for");
  auto uneven = on(options_, {-1, -1, -1});
  uneven.mesh.axes = "pipeline=2 data=2-1 tensor=2";
  EXPECT_ERROR(
      require_runnable(resolve_plan(uneven, layout::Cluster::uniform(1, 6)), 6), ErrorKind::usage,
      "[train] a tensor axis does not combine with stages of different numbers of replicas "
      "yet; got a data axis by stage with mesh.axes pipeline=2 data=2-1 tensor=2, expected "
      "as many replicas of each stage");
  expect_refused(
      [](auto& of) {
        of.trainer.strategy = "pipedream";
        of.mesh = {};
        of.mesh.axes = "pipeline=2 tensor=2";
      },
      "gpt", combine("a pipeline without flushes"));
  expect_refused([](auto& of) { of.ddp.codec.name = "int8"; }, "gpt",
                 combine("compressed gradients"));
  expect_refused([](auto& of) { of.ema.enabled = true; }, "gpt", combine("averages of weights"));
  expect_refused([](auto& of) { of.pipeline.cut_by = "time"; }, "gpt",
                 combine("measured times of blocks"));
  expect_refused([](auto& of) { of.pipeline.schedule = "auto"; }, "gpt",
                 combine("measured times of blocks"));
  expect_refused(
      [](auto& of) {
        of.trainer.strategy = "1f1b";
        of.mesh.data = -1;
      },
      "gpt", "strategy 1f1b does not cut layers, so it takes no mesh.tensor; got 2");
}

}  // namespace
}  // namespace troika::train
