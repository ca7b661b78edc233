// Activations in files, in runs on pipelines, tensor and context axes.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/train/pipelined_runs.h"
#include "troika/train/run/callback.h"

namespace troika::train {
namespace {

// Counts the steps before whose updates this process has mapped a file of the folder. The files
// have no names.
class FilesOfSteps : public Callback {
 public:
  FilesOfSteps(std::filesystem::path folder, std::atomic<int>& steps)
      : folder_(std::move(folder)), steps_(steps) {}
  std::string name() const override { return "FilesOfSteps"; }
  void on_before_optimizer_step(FitContext&) override {
    std::ifstream maps("/proc/self/maps");
    const std::string all{std::istreambuf_iterator<char>(maps), {}};
    if (all.find(folder_.string()) != std::string::npos) ++steps_;
  }

 private:
  const std::filesystem::path folder_;
  std::atomic<int>& steps_;
};

using OffloadedStages = PipelinedRuns;

TEST_F(OffloadedStages, ChangeNoBit) {
  struct Case {
    const char *strategy, *schedule, *recompute;
    int pipeline, tensor, context = 1;
  };
  for (const auto& of : {Case{"pipeline", "1f1b", "none", 2, 1},
                         {"pipeline", "zb-h1", "none", 2, 1},
                         {"pipeline", "gpipe", "full", 2, 1},
                         {"tp", "", "none", 1, 2},
                         {"3d", "1f1b", "selective", 2, 2},
                         {"cp", "", "none", 1, 1, 2},
                         {"3d", "1f1b", "full", 2, 1, 2}}) {
    auto options = options_;
    options.trainer.strategy = of.strategy;
    options.trainer.recompute = of.recompute;
    options.trainer.max_steps = 2;
    options.trainer.max_epochs = 1;
    options.mesh.tensor = of.tensor;
    options.mesh.context = of.context;
    if (of.pipeline > 1) {
      options.pipeline.micro_batches = 2;
      options.pipeline.schedule = of.schedule;
      options.mesh.pipeline = of.pipeline;
    }
    const int ranks = of.pipeline * of.tensor * of.context;
    const auto expected = fit(options, ranks, "gpt64");
    const TemporaryFolder files;
    options.offload.activations = files.path().string();
    std::atomic<int> steps = 0;
    const auto found = fit(options, ranks, "gpt64", [&](Trainer& trainer, Task&) {
      trainer.add(std::make_shared<FilesOfSteps>(files.path(), steps));
    });
    EXPECT_EQ(steps, 2 * ranks) << of.strategy;
    for (const auto& [name, tensor] : expected.state) {
      EXPECT_TRUE(found.state.at(name).equal(tensor)) << of.strategy << " " << name;
    }
  }
}

}  // namespace
}  // namespace troika::train
