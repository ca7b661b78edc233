// Runs on meshes of several axes.
#include <gtest/gtest.h>

#include "tests/train/logged_rows.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/nn/state.h"
#include "troika/train/loop/fit.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {
namespace {

struct Course {
  observe::RunSummary summary;
  LoggedRows rows;
  std::vector<at::Tensor> state;  // of the module
};

TrainOptions options_in(const std::filesystem::path& folder) {
  TrainOptions options;
  options.run.folder = folder.string();
  options.trainer.max_epochs = 2;
  options.trainer.log_every_n_steps = 2;
  options.trainer.gradient_clip_val = 0.1;
  options.trainer.enable_progress_bar = false;
  options.trainer.sync_batchnorm = true;
  options.data.batch_size = 3;
  options.data.workers = 0;
  options.model.name = "";
  return options;
}

// Returns the course of rank 0; all ranks must have the same weights. Axes other than `data` divide
// nothing: their ranks do the same work.
Course fit_on(const std::string& axes, const std::string& strategy) {
  const TemporaryFolder folder;
  auto options = options_in(folder.path());
  options.trainer.strategy = strategy;
  const auto mesh = layout::Mesh::parse(axes);
  Course course;
  comm::local::run(mesh.ranks(), [&](const comm::Group& world) {
    auto plan = resolve_plan(options, cluster_of(world));
    plan.mesh = mesh;
    const auto task = make_waves_task(6, /*dropout=*/0.3);
    const Waves points;
    Fit fit({.options = options,
             .plan = plan,
             .groups = comm::MeshGroups(world, mesh),
             .folder = folder.path(),
             .task = *task,
             .training = points,
             .validation = points,
             .callbacks = {}},
            {});
    fit.run();
    std::vector<at::Tensor> state;
    for (const auto& entry : nn::named_state(task->module())) {
      state.push_back(entry.second.detach().clone());
      const auto first = entry.second.detach().clone();
      world.broadcast(first, 0);
      EXPECT_TRUE(first.equal(entry.second)) << entry.first << " on rank " << world.rank();
    }
    if (world.rank() == 0) course = {fit.summary("finished"), csv_rows(folder.path()), state};
  });
  return course;
}

// Samples, seeds, dropout, statistics of batch norm, clipping, metrics and logs follow the data
// axis, whatever axes are outside or inside it.
TEST(MeshRun, FollowsTheDataAxis) {
  for (const std::string strategy : {"ddp", "zero2"}) {
    const auto expected = fit_on("data=2", strategy);
    ASSERT_GT(expected.rows.size(), 3u);
    for (const std::string axes : {"data=2 expert=2", "expert=2 data=2"}) {
      const auto course = fit_on(axes, strategy);
      EXPECT_EQ(course.rows, expected.rows) << axes << ", " << strategy;
      EXPECT_EQ(course.summary.samples, expected.summary.samples);
      EXPECT_EQ(course.summary.validation_loss, expected.summary.validation_loss);
      ASSERT_EQ(course.state.size(), expected.state.size());
      for (size_t i = 0; i < course.state.size(); ++i) {
        EXPECT_TRUE(course.state[i].equal(expected.state[i])) << axes << ", tensor " << i;
      }
    }
  }
}

}  // namespace
}  // namespace troika::train
