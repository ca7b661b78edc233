// Signals during a validation: all ranks save and leave the validation at the same batch, and the
// resumed run logs everything exactly once. Ranks are processes, each with its own handlers.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/train/forked_ranks.h"
#include "tests/train/logged_rows.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/train/run/run_group.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using cluster::StopRequest;
using testing::Each;

constexpr int kSignalledRanks = 4;

// Gets a signal in its `at`-th step of validation, counted from 1; 0: never.
class SignalledTask : public LoggingTask {
 public:
  SignalledTask(int signal, int at)
      : LoggingTask(make_waves_model(8, 0.3)), signal_(signal), at_(at) {}
  void validation_step(const data::Batch& batch, Evaluation& evaluation) override {
    // A repeated validation draws the same random numbers.
    log("validation/random", at::rand({1}), {.sync_dist = true});
    Task::validation_step(batch, evaluation);
    if (++steps == at_) ::raise(signal_);
  }
  int steps = 0;

 private:
  const int signal_;
  const int at_;
};

class Signals : public testing::Test {
 protected:
  Signals() {
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.loggers = {"csv", "jsonl"};
    options_.trainer.log_every_n_steps = 2;
    options_.trainer.val_check_interval = "2";
    options_.trainer.sync_batchnorm = true;  // a pass has one sample a rank
    options_.trainer.num_sanity_val_steps = 0;
    options_.trainer.ckpt_path = "last";
    options_.data.global_batch_size = 4;
    options_.comm.algorithm = "ring";  // whatever the links measure
    options_.run.folder = folder_.path().string();
  }

  // Runs one rank in a separate process. If the run was stopped, the exit code is 10 times the
  // reason plus the number of its validation steps.
  [[noreturn]] void be_rank(int rank, int port, const std::string& run, int signal, int at) const {
    try {
      cluster::Environment environment;
      environment.rank = environment.local_rank = rank;
      environment.world_size = environment.local_world_size = kSignalledRanks;
      environment.master_port = port;
      const cluster::StopSignals signals(/*requeue=*/true);
      auto options = options_;
      options.run.name = run;
      const auto group = comm::world(environment, world_options(options));
      SignalledTask task(signal, at);
      Trainer trainer(options, group);
      trainer.ask_to_stop([&] { return signals.asked(); });
      trainer.fit(task, Waves(), Waves());
      const int stopped = static_cast<int>(trainer.stopped_by());
      ::_exit(stopped == 0 ? 0 : 10 * stopped + task.steps);
    } catch (const std::exception& error) {
      fmt::print(stderr, "error of rank {}: {}\n", rank, error.what());
      ::_exit(99);
    }
  }

  std::vector<int> exit_codes(const std::string& run, int victim = -1, int signal = 0) const {
    const int port = cluster::free_port();
    Life life(kSignalledRanks,
              [&](int rank) { be_rank(rank, port, run, signal, rank == victim ? 1 : 0); });
    auto codes = life.statuses();
    for (auto& status : codes) status = WIFEXITED(status) ? WEXITSTATUS(status) : -status;
    return codes;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(Signals, InAValidationLoseAndDoubleNoMetric) {
  ASSERT_THAT(exit_codes("whole"), Each(0));
  const auto csv = csv_rows(folder_ / "whole"), jsonl = jsonl_rows(folder_ / "whole");
  ASSERT_GE(jsonl.size(), 12u);
  for (const auto& [victim, signal, request] : {std::tuple(0, SIGTERM, StopRequest::save_and_stop),
                                                {3, SIGTERM, StopRequest::save_and_stop},
                                                {0, SIGUSR1, StopRequest::save_and_requeue},
                                                {2, SIGUSR1, StopRequest::save_and_requeue}}) {
    const auto run = fmt::format("signal-{}-rank-{}", signal, victim);
    SCOPED_TRACE(run);
    // All after one step.
    EXPECT_THAT(exit_codes(run, victim, signal), Each(10 * static_cast<int>(request) + 1));
    EXPECT_THAT(exit_codes(run), Each(0));
    EXPECT_EQ(csv_rows(folder_ / run), csv);
    EXPECT_EQ(jsonl_rows(folder_ / run), jsonl);
  }
}

}  // namespace
}  // namespace troika::train
