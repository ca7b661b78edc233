// Runs with a tensor axis.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "tests/train/checkpointed_runs.h"
#include "troika/checkpoint/checkpoint.h"

namespace troika::train {
namespace {

class TensorRun : public CheckpointedRuns {
 protected:
  TrainOptions cut(int tensor) const {
    auto options = options_;
    options.trainer.strategy = "tp";
    options.mesh.tensor = tensor;
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

// The vocabulary of 13 words is cut unevenly.
TEST_F(TensorRun, EqualsOneProcess) {
  for (const std::string model : {"mlp", "gpt-dropout", "llama"}) {
    const auto alone = fit(options_, 1, model);
    expect_same_course(fit(cut(2), 4, model), alone, model + ", 2 x 2");
  }
}

// Batch norms have statistics of both replicas, and a rank has those of its channels.
TEST_F(TensorRun, OfImagesEqualsOneProcess) {
  options_.optimizer.name = "sgd";
  options_.trainer.sync_batchnorm = true;
  const auto alone = fit(options_, 1, "resnet20");
  const auto found = fit(cut(2), 4, "resnet20");
  expect_same_course(found, alone, "resnet20");
  for (const auto& [name, tensor] : alone.state) {
    EXPECT_TRUE(found.state.at(name).allclose(tensor, 1e-10, 1e-10)) << name;
  }
}

// The last stage of a pipeline computes the loss, and several ranks of a tensor axis do together.
TEST_F(TensorRun, SmoothsLabelsAndAddsZLoss) {
  options_.trainer.loss_terms = {.label_smoothing = 0.2, .z_loss = 1e-2};
  options_.trainer.max_epochs = 1;
  const auto alone = fit(accumulating(2), 1, "llama");
  for (const std::string strategy : {"tp", "3d", "1f1b"}) {
    auto options = options_;
    options.trainer.strategy = strategy;
    if (strategy == "tp") options.trainer.accumulate_grad_batches = 2;
    if (strategy != "tp") options.pipeline.micro_batches = 2;
    if (strategy != "1f1b") options.mesh.tensor = 2;
    if (strategy == "3d") options.mesh.pipeline = 2;
    expect_same_course(fit(options, strategy == "3d" ? 4 : 2, "llama"), alone, strategy);
  }
}

TEST_F(TensorRun, EqualsOneProcessInOtherMeshes) {
  const auto alone = fit(accumulating(3), 1, "llama");
  for (const auto& [axes, sequence] :
       {std::pair("data=1 tensor=4", false), std::pair("tensor=2 data=2", true)}) {
    auto options = cut(-1);
    options.trainer.accumulate_grad_batches = 3;
    options.mesh.axes = axes;
    options.mesh.sequence_parallel = sequence;
    expect_same_course(fit(options, 4, "llama"), alone, axes);
  }
}

TEST_F(TensorRun, EqualsOneProcessWithZero) {
  const auto alone = fit(accumulating(2), 1, "llama");
  for (const int stage : {1, 3}) {
    auto options = cut(2);
    options.trainer.accumulate_grad_batches = 2;
    options.zero.stage = stage;
    expect_same_course(fit(options, 4, "llama"), alone, "zero" + std::to_string(stage));
  }
}

// Ranks of a tensor axis push their gradients in different orders.
TEST_F(TensorRun, AReplicaOfDownpourEqualsOneProcess) {
  options_.optimizer.name = "sgd";
  options_.optimizer.momentum = 0;
  options_.trainer.gradient_clip_val = 0;
  const auto alone = fit(accumulating(2), 1, "llama");
  auto options = options_;
  options.trainer.strategy = "downpour";
  options.downpour.overlap = false;
  options.mesh.tensor = 2;
  options.pipeline.micro_batches = 2;
  expect_same_course(fit(options, 2, "llama"), alone, "a tensor mesh");
}

// A pass that is made again exchanges again, and draws the same masks.
TEST_F(TensorRun, RecomputesLikeOneProcess) {
  options_.trainer.recompute = "full";
  for (const auto& [model, sequence] :
       {std::pair("gpt-dropout", false), std::pair("llama", true)}) {
    auto options = cut(2);
    options.mesh.sequence_parallel = sequence;
    expect_same_course(fit(options, 2, model), fit(options_, 1, model), model);
  }
}

// Sums of halves are rounded in another order there, to 8 bits, and processors with bfloat16
// instructions round at other places again.
TEST_F(TensorRun, UnderAutocastIsCloseToOneProcess) {
  options_.trainer.precision = "bf16-mixed";
  const auto alone = fit(options_, 1, "llama");
  for (const bool sequence : {false, true}) {
    auto options = cut(2);
    options.mesh.sequence_parallel = sequence;
    const auto found = fit(options, 4, "llama");
    EXPECT_EQ(found.summary.steps, alone.summary.steps);
    EXPECT_NEAR(found.summary.train_loss, alone.summary.train_loss, 0.05);
    EXPECT_NEAR(found.summary.validation_loss, alone.summary.validation_loss, 0.05);
  }
}

// LAMB's rates depend on norms of whole parameters.
TEST_F(TensorRun, NormsAreThoseOfWholeParameters) {
  options_.optimizer.name = "lamb";
  options_.statistics.every_n_steps = 1;
  const auto alone = fit(options_, 1, "llama");
  const auto found = fit(cut(2), 2, "llama");
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

// Stopped in the middle of the only epoch of 11 steps, and resumed.
TEST_F(TensorRun, GoesOnAsIfItHadNotStopped) {
  auto options = cut(2);
  options.trainer.max_epochs = 1;
  const auto whole = fit(options, 4, "gpt-dropout");
  options.run.folder = (folder_ / "cut").string();
  options.trainer.max_steps = 5;
  fit(options, 4, "gpt-dropout");
  options.trainer.max_steps = -1;
  options.trainer.ckpt_path = "last";
  const auto resumed = fit(options, 4, "gpt-dropout");
  EXPECT_EQ(resumed.summary.steps, whole.summary.steps);
  for (const auto& [name, tensor] : whole.state) {
    EXPECT_TRUE(resumed.state.at(name).equal(tensor)) << name;
  }
  EXPECT_EQ(resumed.summary.train_loss, whole.summary.train_loss);
  EXPECT_EQ(resumed.summary.validation_loss, whole.summary.validation_loss);
}

// Any layout can resume from the checkpoint of any other, which holds whole tensors without
// padding.
TEST_F(TensorRun, CheckpointsBelongToTheModel) {
  struct Layout {
    std::string strategy;
    int ranks, tensor = -1;
  };
  auto options = cut(2);
  options.run.folder = (folder_ / "first").string();
  options.trainer.max_steps = 2;
  const auto course = fit(options, 4, "llama");
  auto latest = folder_ / "first/run/checkpoints/last";
  const auto expected = kept(latest);
  for (const auto& [name, tensor] : course.state) {
    EXPECT_TRUE(expected.at("model." + name).equal(tensor)) << name;
  }
  EXPECT_EQ(expected.at("optimizer.state.model.embed_tokens.weight.exp_avg").size(0), 13);
  for (const auto& [strategy, ranks, tensor] :
       {Layout{"tp", 4, 4}, Layout{"ddp", 1}, Layout{"tp", 2, 2}, Layout{"1f1b", 2},
        Layout{"tp", 4, 2}, Layout{"zero2", 2}, Layout{"tp", 4, 4}}) {
    auto next = options_;
    next.trainer.strategy = strategy;
    next.mesh.tensor = tensor;
    latest = pass_on(latest, next, ranks, "llama");
  }
}

// With the running statistics of cut batch norms.
TEST_F(TensorRun, CheckpointsOfImagesBelongToTheModel) {
  auto options = cut(2);
  options.run.folder = (folder_ / "first").string();
  options.trainer.max_steps = 2;
  const auto course = fit(options, 4, "resnet20");
  auto latest = folder_ / "first/run/checkpoints/last";
  const auto expected = kept(latest);
  for (const auto& [name, tensor] : course.state) {
    EXPECT_TRUE(expected.at("model." + name).equal(tensor)) << name;
  }
  for (const std::string strategy : {"ddp", "3d", "tp", "zero3", "tp"}) {
    auto next = options_;
    next.trainer.strategy = strategy;
    if (strategy == "3d") next.mesh.pipeline = 2;
    if (strategy == "tp" || strategy == "3d") next.mesh.tensor = 2;
    latest = pass_on(latest, next, strategy == "3d" ? 4 : 2, "resnet20");
  }
}

// The ranks of a tensor axis have had the same samples, which count once.
TEST_F(TensorRun, AnotherMeshGoesOnWithTheLossOfTheEpoch) {
  auto options = options_;
  options.trainer.max_epochs = 1;
  const auto whole = fit(options, 1, "llama");
  options.mesh.tensor = 2;
  options.pipeline.micro_batches = 1;
  options.run.folder = (folder_ / "cut").string();
  for (const std::string strategy : {"tp", "3d"}) {
    options.trainer.strategy = strategy;
    options.trainer.max_steps = 5;
    options.trainer.ckpt_path.clear();
    fit(options, 2, "llama");
    auto next = options_;
    next.trainer.max_epochs = 1;
    next.trainer.ckpt_path = (folder_ / "cut/run/checkpoints/last").string();
    const auto resumed = fit(next, 1, "llama");
    EXPECT_EQ(resumed.summary.steps, whole.summary.steps);
    EXPECT_NEAR(resumed.summary.train_loss, whole.summary.train_loss, 1e-10) << strategy;
  }
}

// Each rank takes its part of the gradients so far.
TEST_F(TensorRun, GoesOnWithAStepThatAnotherStrategyLeft) {
  const auto left = folder_ / "left";
  const auto whole = fit(accumulating(4), 2, "llama", [&](Trainer& trainer, Task&) {
    trainer.add(std::make_shared<SavesInAStep>(left));
  });
  auto options = cut(2);
  options.trainer.accumulate_grad_batches = 4;
  options.trainer.ckpt_path = left.string();
  const auto course = fit(options, 2, "llama");
  EXPECT_EQ(course.summary.steps, whole.summary.steps);
  expect_close(course.state, whole.state, "tp");
}

TEST_F(TensorRun, RefusesWhatDoesNotDivide) {
  expect_refused(cut(3), 3, "llama", "4 heads, 3 ranks");
  expect_refused(cut(4), 4, "gpt", "2 heads, 4 ranks");
  expect_refused(cut(4), 4, "mlp", "6 outputs, 4 ranks");
  expect_refused(cut(2), 3, "gpt", "mesh.tensor and mesh.data do not fit the ranks of this run");
  expect_refused(cut(3), 3, "resnet20", "16 channels, 3 ranks");
}

// Before the run begins, and so before the layers are cut.
TEST_F(TensorRun, RefusesTokensThatDoNotDivide) {
  class Begins : public Callback {
   public:
    std::string name() const override { return "begins"; }
    void on_fit_start(FitContext&) override { ADD_FAILURE() << "the run begins"; }
  };
  auto options = cut(2);
  options.mesh.sequence_parallel = true;
  comm::local::run(2, [&](const comm::Group& world) {
    Task task(make_sized_model("gpt"));
    const SizedSamples samples(sizes_of("gpt"));
    Trainer trainer(options, world);
    trainer.add(std::make_shared<Begins>());
    EXPECT_ERROR(trainer.fit(task, samples, samples), ErrorKind::usage,
                 "[parallel] the tokens cannot be cut over the tensor axis; got 5 tokens, 2 ranks, "
                 "expected a multiple of 2 tokens (change data.context or the size of the axis, or "
                 "turn mesh.sequence_parallel off)");
    for (const auto& [name, tensor] : nn::named_parameters(task.module())) {
      if (!name.ends_with("wte.weight")) continue;
      EXPECT_EQ(tensor.size(0), 13) << "it is whole";
    }
  });
}

TEST_F(TensorRun, RefusesWhatDoesNotCombine) {
  const auto refused = [&](const std::function<void(TrainOptions&)>& change,
                           const std::string& message) {
    auto options = cut(2);
    change(options);
    expect_refused(options, 2, "gpt", message);
  };
  const auto combine = [](const std::string& with) {
    return "a tensor axis does not combine with " + with + " yet";
  };
  refused([](auto& of) { of.zero.group_size = 2; },
          "strategy tp shards nothing, so it takes no zero.group_size; got 2");
  refused(
      [](auto& of) {
        of.zero.stage = 1;
        of.mesh.pipeline = 2;
      },
      "strategy tp does not cut the model into stages; got mesh.pipeline = 2");
  refused(
      [](auto& of) {
        of.zero.stage = 1;
        of.mesh = {.axes = "pipeline=2 tensor=1"};
      },
      "does not cut the model into stages; got mesh.axes pipeline=2 tensor=1");
  refused([](auto& of) { of.ddp.codec.name = "int8"; }, combine("compressed gradients"));
  refused([](auto& of) { of.ema.enabled = true; }, combine("averages of weights"));
  refused(
      [](auto& of) {
        of.optimizer.name = "adamw_8bit";
        of.trainer.precision = "32";
      },
      combine("states of 8 bits"));
  refused([](auto& of) { of.trainer.recompute = "budget:1MiB"; },
          combine("recomputation by measured times"));
  refused([](auto& of) { of.trainer.strategy = "ddp"; }, "it takes no mesh.tensor; got 2");
}

}  // namespace
}  // namespace troika::train
