// Runs that are stopped and resumed, compared with one that is not.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/checkpoint/saved_state.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/compat/accelerator.h"
#include "troika/train/trainer.h"

namespace troika::train {

class CountingTask : public LoggingTask {
 public:
  using LoggingTask::LoggingTask;
  void validation_step(const data::Batch& batch, Evaluation& evaluation) override {
    ++validation_steps;
    Task::validation_step(batch, evaluation);
  }

  int64_t validation_steps = 0;  // of this rank
};

class ResumedRun : public testing::Test {
 protected:
  // Makes the stop question of one rank; empty: the rank never asks to stop.
  using MakeQuestion = std::function<StopQuestion(const CountingTask& task, int rank)>;

  ResumedRun() {
    options_.trainer.enable_progress_bar = false;
    options_.trainer.log_every_n_steps = 2;
    options_.data.global_batch_size = 4;  // 6 passes an epoch
    options_.optimizer.name = "adamw";
    options_.optimizer.lr = 0.05;
    options_.run.folder = (folder_ / "whole").string();
    options_.run.overwrite = true;
  }

  // Runs, and returns the state of each rank on which its further training depends.
  std::vector<checkpoint::RankState> fit(const TrainOptions& options, int ranks,
                                         const MakeQuestion& question = {}) {
    std::vector<checkpoint::RankState> result(static_cast<size_t>(ranks));
    comm::local::run(ranks, [&](const comm::Group& group) {
      if (links_.defined()) group.assume_links(links_);
      CountingTask task(make_waves_model(width_, dropout_));
      const Waves waves;
      Trainer trainer(options, group);
      if (question) trainer.ask_to_stop(question(task, group.rank()));
      const auto summary = trainer.fit(task, waves, waves);
      EXPECT_EQ(summary.status, question ? "stopped" : "finished");
      const auto last = checkpoint::find_checkpoint(trainer.folder() / "checkpoints", "last");
      result[static_cast<size_t>(group.rank())] = checkpoint::load_rank_state(last, group.rank());
    });
    return result;
  }

  static void expect_same(const checkpoint::NamedTensors& a, const checkpoint::NamedTensors& b,
                          bool random = true) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].first, b[i].first);
      if (is_measured(a[i].first)) continue;
      if (a[i].first.starts_with("random.") && !random) continue;
      EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
    }
  }

  // Returns metrics.csv without samples_per_second, which differs between runs.
  static std::string logged(const TrainOptions& options) {
    std::string result;
    const auto lines =
        split(read_file(std::filesystem::path(options.run.folder) / "run/metrics.csv"), '\n');
    const auto header = split(lines.at(0), ',');
    for (const auto& line : lines) {
      const auto cells = split(line, ',');
      for (size_t i = 0; i < cells.size(); ++i) {
        if (header.at(i) != "train/samples_per_second") result += cells[i] + ",";
      }
      result += "\n";
    }
    return result;
  }

  // Expects that a run with these options in the folder `name`, which the question stops and which
  // is then resumed, ends bit-identical to `whole`.
  void expect_exact(const std::vector<checkpoint::RankState>& whole, const std::string& name,
                    const MakeQuestion& question) {
    SCOPED_TRACE(name);
    const auto ranks = static_cast<int>(whole.size());
    auto options = options_;
    options.run.folder = (folder_ / name).string();
    options.trainer.ckpt_path = "last";
    fit(options, ranks, question);
    // Earlier random numbers and gradients must not help.
    compat::manual_seed(99);
    const auto resumed = fit(options, ranks);
    for (size_t r = 0; r < whole.size(); ++r) {
      SCOPED_TRACE(r);
      expect_same(whole[r].model, resumed[r].model);
      expect_same(whole[r].rest, resumed[r].rest, ranks == 1);  // threads share generators
    }
    EXPECT_EQ(logged(options_), logged(options));
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  int64_t width_ = 8;
  double dropout_ = 0;
  // The message costs that all runs assume, if they must choose the same algorithms.
  at::Tensor links_;
};

}  // namespace troika::train
