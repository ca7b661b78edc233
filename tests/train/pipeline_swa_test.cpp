// The mean of the weights of the last epochs (SWA) in pipelines, compared with one process that
// accumulates the same micro-batches.
#include <gmock/gmock.h>

#include "tests/train/pipelined_runs.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/parallel/pipeline/left_out.h"
#include "troika/train/task/replicated_task.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

class PipelineSwa : public PipelinedRuns {
 protected:
  PipelineSwa() {
    options_.trainer.max_epochs = 3;  // of 6 steps
    options_.swa = {.swa_lrs = 0.005, .swa_epoch_start = "1", .annealing_epochs = 1};
  }

  // Returns the options with a folder of its own.
  TrainOptions into(const std::string& name, TrainOptions options) const {
    options.run.folder = (folder_ / name).string();
    return options;
  }
  static std::filesystem::path checkpoints(const TrainOptions& options) {
    return std::filesystem::path(options.run.folder) / "run/checkpoints";
  }
  static ModuleState file_of(const TrainOptions& options) {
    const auto list = checkpoint::load_safetensors(checkpoints(options) / "swa.safetensors");
    return {list.begin(), list.end()};
  }
  // Also the running statistics, which are those of the mean.
  static void expect_all_close(const ModuleState& found, const ModuleState& expected,
                               const std::string& what) {
    ASSERT_EQ(found.size(), expected.size()) << what;
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(found.at(name).allclose(tensor, 1e-10, 1e-10)) << name << ", " << what;
    }
  }
};

TEST_F(PipelineSwa, IsTheMeanOfOneProcess) {
  struct Layout {
    std::string model, schedule, mesh;
    int ranks, zero = 0;
  };
  std::map<std::string, ModuleState> oracles;
  for (const std::string model : {"gpt", "resnet20"}) {
    const auto alone = into(model, accumulating(2));
    oracles[model] = fit(alone, 1, model).state;
    expect_all_close(file_of(alone), oracles[model], model);
  }
  for (const auto& [model, schedule, mesh, ranks, zero] :
       {Layout{"gpt", "zb-v", "pipeline=2 data=2", 4},
        {"gpt", "1f1b", "pipeline=2 data=2", 4, 3},
        {"gpt", "1f1b", "pipeline=2 data=2-1", 3},
        {"resnet20", "zb-h1", "pipeline=2 data=1", 2},
        {"resnet20", "interleaved", "pipeline=2 data=2", 4}}) {
    const auto what = fmt::format("{} {} {} zero {}", model, schedule, mesh, zero);
    auto options = into(fmt::format("{}-{}-{}", model, schedule, ranks), pipelined(schedule, 2));
    options.mesh.axes = mesh;
    options.zero.stage = zero;
    options.trainer.sync_batchnorm = ranks == 4;
    const auto course = fit(options, ranks, model);
    expect_all_close(course.state, oracles[model], what);
    expect_all_close(file_of(options), oracles[model], what + ", file");
  }
}

// Rank 0 collects the tensors for the file.
TEST_F(PipelineSwa, IsThatOfTheWholeModelIfNoRankHoldsIt) {
  const auto expected = fit(accumulating(4), 1, "mlp").state;
  auto options = into("stages", pipelined("1f1b", 4));
  options.model = sizes_of("mlp");
  std::mutex mutex;
  comm::local::run(2, [&](const comm::Group& world) {
    const auto task = [&] {
      const std::lock_guard lock(mutex);
      at::manual_seed(5);
      return make_task_to_fit(options);
    }();
    const SizedSamples samples(options.model);
    Trainer(options, world).fit(*task, samples, samples);
    EXPECT_TRUE(parallel::lacks_tensors(task->module())) << world.rank();
  });
  expect_all_close(file_of(options), expected, "file");
}

// Each rank saves the averages of its stages; any layout can resume from them.
TEST_F(PipelineSwa, GoesOnFromACheckpoint) {
  auto whole = into("whole", pipelined("1f1b", 2));
  whole.mesh.pipeline = 2;
  const auto expected = fit(whole, 4, "gpt").state;
  auto first = whole;
  first.run.folder = (folder_ / "first").string();
  first.trainer.max_steps = 14;  // in the third epoch
  fit(first, 4, "gpt");
  for (const int ranks : {1, 4}) {
    auto options = into(fmt::format("on-{}", ranks), ranks == 1 ? accumulating(2) : whole);
    options.trainer.ckpt_path = (checkpoints(first) / "last").string();
    const auto course = fit(options, ranks, "gpt");
    expect_all_close(course.state, expected, fmt::format("on {}", ranks));
    expect_all_close(file_of(options), expected, fmt::format("file on {}", ranks));
  }
}

TEST_F(PipelineSwa, RefusesBatchNormsOfUnevenReplicas) {
  auto options = into("uneven", pipelined("1f1b", 2));
  options.mesh.axes = "pipeline=2 data=2-1";
  std::vector<std::string> errors(3);
  comm::local::run(3, [&](const comm::Group& world) {
    Task task(make_sized_model("resnet20"));
    const SizedSamples samples(sizes_of("resnet20"));
    try {
      Trainer(options, world).fit(task, samples, samples);
    } catch (const Error& problem) {
      errors[static_cast<size_t>(world.rank())] = problem.what();
    }
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, HasSubstr("swa recomputes the statistics of batch norms; got stages with "
                                 "different numbers of replicas"));
  }
}

}  // namespace
}  // namespace troika::train
