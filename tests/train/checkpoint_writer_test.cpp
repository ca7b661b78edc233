#include "troika/checkpoint/writer.h"

#include <gmock/gmock.h>

#include <latch>

#include "tests/checkpoint/saved_state.h"
#include "tests/support/errors.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/train/loop/run_checkpoints.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {
// The stages of a pipeline without flushes write without waiting for each other.
TEST(CheckpointWriter, WritesBesidePipelinesWithoutFlushes) {
  const auto plan_of = [](const std::string& strategy) {
    TrainOptions options;
    options.trainer.strategy = strategy;
    options.data.global_batch_size = 4;
    return resolve_plan(options, layout::Cluster::uniform(1, 2));
  };
  for (const std::string strategy : {"pipedream", "pipedream_2bw"}) {
    EXPECT_TRUE(writes_beside_training({}, plan_of(strategy))) << strategy;
    EXPECT_FALSE(writes_beside_training({.async = "false"}, plan_of(strategy)));
  }
  for (const std::string strategy : {"ddp", "1f1b", "pipedream_flush"}) {
    EXPECT_FALSE(writes_beside_training({}, plan_of(strategy))) << strategy;
    EXPECT_TRUE(writes_beside_training({.async = "true"}, plan_of(strategy)));
  }
}

// A failed asynchronous checkpoint ends the run, not only its thread.
TEST(CheckpointWriter, WhatFailsIsThrownByTheRun) {
  for (const int64_t every_n_train_steps : {1, 0}) {
    const TemporaryFolder folder;
    TrainOptions options;
    options.run.folder = folder.path().string();
    options.trainer.max_epochs = 2;
    options.trainer.enable_progress_bar = false;
    options.data.global_batch_size = 4;
    options.checkpoint.async = "true";
    options.checkpoint.every_n_train_steps = every_n_train_steps;
    make_folder(folder / "run");
    std::filesystem::create_symlink("nowhere/else", folder / "run/checkpoints");
    const auto task = make_waves_task(8, 0);
    const Waves waves;
    Trainer trainer(options, comm::local::alone());
    const auto unfinished =
        folder.path() / (every_n_train_steps ? "run/checkpoints/.unfinished-epoch=0-step=1"
                                             : "run/checkpoints/.unfinished-epoch=1-step=6");
    EXPECT_ERROR(trainer.fit(*task, waves, waves), ErrorKind::failure,
                 "[base] cannot create folder " + unfinished.string() + "; got File exists");
    EXPECT_FALSE(std::filesystem::exists(folder / "run/checkpoints"));
  }
}

}  // namespace
}  // namespace troika::train
