// Runs that train adapters, whatever the layout.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/checkpointed_runs.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/nn/lora.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/weight_sizes.h"
#include "troika/train/task/replicated_task.h"

namespace troika::train {
namespace {

struct Layout {
  std::string name, strategy;
  int ranks;
  int pipeline = -1, tensor = -1;
  bool sequence = false;
  int64_t zero = 0;
  std::string recompute = "none";
};

class LoraRun : public CheckpointedRuns {
 protected:
  LoraRun() { options_.trainer.max_epochs = 1; }

  // Options of a run whose steps have as many micro-batches as those of accumulating(2).
  TrainOptions on(const Layout& layout) const {
    auto options = options_;
    options.trainer.strategy = layout.strategy;
    options.trainer.recompute = layout.recompute;
    options.mesh.pipeline = layout.pipeline;
    options.mesh.tensor = layout.tensor;
    options.mesh.sequence_parallel = layout.sequence;
    if (layout.strategy == "3d" || layout.strategy == "1f1b") {
      options.pipeline.micro_batches = 2;
    } else {
      options.trainer.accumulate_grad_batches = 2;
    }
    if (layout.zero > 0) options.zero.stage = layout.zero;
    return options;
  }

  // Expects the bits of the base as they were made, and other adapters.
  static void expect_base_untouched(const ModuleState& state, const std::string& model) {
    const auto made = make_sized_model(model);
    made->to(at::kDouble);
    for (const auto& [name, tensor] : nn::named_state(*made)) {
      EXPECT_EQ(state.at(name).equal(tensor), !nn::is_adapter_parameter(name)) << name;
    }
  }
};

TEST_F(LoraRun, EqualsOneProcessUnderEachStrategy) {
  const std::vector<Layout> layouts = {
      {"ddp", "ddp", 2},
      {"ZeRO 1", "zero1", 2},
      {"ZeRO 2, recomputed", "zero2", 2, -1, -1, false, 0, "full"},
      {"ZeRO 3", "zero3", 2},
      {"pipeline", "1f1b", 2},
      {"tensor", "tp", 4, -1, 2},
      {"tensor, ZeRO 1", "tp", 4, -1, 2, false, 1},
      {"three axes", "3d", 8, 2, 2},
  };
  for (const std::string model : {"gpt-dropout+lora", "llama+lora"}) {
    const auto alone = fit(accumulating(2), 1, model);
    expect_base_untouched(alone.state, model);
    for (auto layout : layouts) {
      layout.sequence = model == "llama+lora" && layout.tensor > 1;
      const auto found = fit(on(layout), layout.ranks, model);
      expect_same_course(found, alone, model + ", " + layout.name);
      expect_base_untouched(found.state, model);
    }
  }
}

// Stages of frozen layers alone have nothing to train.
TEST_F(LoraRun, StagesMayHaveNoAdapters) {
  const auto train = [&](TrainOptions options, int ranks) {
    PipelineCourse course;
    options.run.folder = (folder_ / fmt::format("frozen-{}", ++runs_)).string();
    comm::local::run(ranks, [&](const comm::Group& world) {
      auto sizes = sizes_of("gpt");
      sizes.lora = {.rank = 2, .target_modules = {"h.3.attn.c_attn"}};
      const auto task = [&] {
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        at::manual_seed(5);
        return Task(nn::make_model(sizes));
      };
      Task own = task();
      const SizedSamples samples(sizes);
      const auto summary = Trainer(options, world).fit(own, samples, samples);
      if (world.rank() != 0) return;
      course.summary = summary;
      for (const auto& [name, tensor] : nn::named_state(own.module())) {
        course.state[name] = tensor.detach().clone();
      }
    });
    return course;
  };
  const auto alone = train(accumulating(2), 1);
  for (const auto& [schedule, zero] : {std::pair("1f1b", 0), {"gpipe", 1}, {"zb-h1", 0}}) {
    auto options = on({schedule, "1f1b", 4});
    options.pipeline.schedule = schedule;
    options.zero.stage = zero;
    const auto found = train(options, 4);
    EXPECT_NEAR(found.summary.train_loss, alone.summary.train_loss, 1e-10) << schedule;
    expect_close(found.state, alone.state, schedule);
  }
}

// Any layout resumes from the checkpoint of any other. A checkpoint has the whole model, and states
// of the optimizer for adapters only.
// The checkpoint is that of a version with an option that this one does not have.
TEST_F(LoraRun, AnUnknownOptionOfACheckpointIsNoReasonToRefuseIt) {
  const auto model = sizes_of("llama+lora");
  const auto file = folder_ / "of-another.safetensors";
  const auto save = [&](const std::string& options) {
    checkpoint::save_safetensors(file, {{"weight", at::zeros({1})}}, {{kOptionsKey, options}});
  };
  save("[lora]\nrank = 2\nalpha = 5\n");
  EXPECT_ERROR(require_same_scaling(model, file), ErrorKind::usage,
               "[train] the adapters of " + file.string() +
                   " are scaled in another way; got lora.alpha 4, lora.use_rslora false, expected "
                   "lora.alpha 5, lora.use_rslora false");
  save("[lora]\nrank = 2\nalpha = 5\nno_longer_known = 1\n");
  testing::internal::CaptureStderr();
  EXPECT_NO_THROW(require_same_scaling(model, file));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("the scaling of the adapters of " + file.string() +
                                 " cannot be compared"));
}

TEST_F(LoraRun, CheckpointsBelongToTheModel) {
  auto options = on({"3d", "3d", 8, 2, 2});
  options.run.folder = (folder_ / "first").string();
  options.trainer.max_steps = 2;
  const std::string model = "llama+lora";
  fit(options, 8, model);
  auto latest = folder_ / "first/run/checkpoints/last";
  const auto saved = kept(latest);
  EXPECT_TRUE(saved.contains("model.model.embed_tokens.weight"));
  for (const auto& [name, tensor] : saved) {
    if (name.starts_with("optimizer.state.")) {
      EXPECT_THAT(name, testing::HasSubstr(".lora_")) << name;
    }
  }
  for (const auto& layout : {Layout{"", "ddp", 1},
                             {"", "tp", 4, -1, 4},
                             {"", "1f1b", 2},
                             {"", "zero3", 2},
                             {"", "3d", 8, 2, 2}}) {
    latest = pass_on(latest, on(layout), layout.ranks, model);
  }
}

TEST_F(LoraRun, UnderAutocastIsCloseToOneProcess) {
  options_.trainer.precision = "bf16-mixed";
  const auto alone = fit(accumulating(2), 1, "llama+lora");
  const auto found = fit(on({"3d", "3d", 8, 2, 2}), 8, "llama+lora");
  EXPECT_EQ(found.summary.steps, alone.summary.steps);
  EXPECT_NEAR(found.summary.train_loss, alone.summary.train_loss, 0.05);
}

}  // namespace
}  // namespace troika::train
