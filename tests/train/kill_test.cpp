// Runs that are killed at random instants: every restart finds a whole checkpoint and the logs up
// to it, and the final result, including the logs, is bit-identical to that of an undisturbed run.
//
// Ranks are processes that are forked before any thread is started, which is ten times faster than
// starting a program. TROIKA_KILLS is the number of kills in a test; TROIKA_KILL_SEED determines
// their times.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <random>

#include "tests/checkpoint/saved_state.h"
#include "tests/train/forked_fit.h"
#include "tests/train/forked_ranks.h"
#include "tests/train/logged_rows.h"
#include "troika/base/clock.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/index.h"
#include "troika/checkpoint/resume.h"
#include "troika/cluster/discovery/port.h"

namespace troika::train {
namespace {

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::stoll(text) : otherwise;
}

class Kills : public testing::Test {
 protected:
  Kills() {
    options_.trainer.max_epochs = 8;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.log_every_n_steps = 2;
    options_.trainer.ckpt_path = "last";
    options_.trainer.loggers = {"csv", "jsonl"};
    options_.checkpoint.every_n_train_steps = 1;
    options_.checkpoint.every_n_epochs = 0;
    options_.data.global_batch_size = 4;  // 6 steps an epoch
    options_.optimizer.name = "adamw";
    options_.optimizer.lr = 0.05;
    options_.run.folder = folder_.path().string();
  }

  std::filesystem::path checkpoints(const std::string& run) const {
    return folder_ / run / "checkpoints";
  }
  std::filesystem::path output() const { return folder_ / "output"; }

  // Runs one rank of a run, in a separate process.
  [[noreturn]] void be_rank(int rank, int port, const std::string& run) const {
    auto options = options_;
    options.run.name = run;
    be_rank_of_fit(rank, ranks_, port, output(), options, make_task_);
  }

  // Starts a run of this name, or resumes it.
  Life live(const std::string& run) const {
    std::filesystem::remove(output());
    const int port = cluster::free_port();
    return Life(ranks_, [&](int rank) { be_rank(rank, port, run); });
  }

  // Returns the final state of each rank on which further training depends.
  std::vector<checkpoint::RankState> kept(const std::filesystem::path& checkpoint) const {
    std::vector<checkpoint::RankState> result;
    for (int rank = 0; rank < ranks_; ++rank) {
      result.push_back(checkpoint::load_rank_state(checkpoint, rank));
      std::erase_if(result.back().rest, [](const auto& item) { return is_measured(item.first); });
    }
    return result;
  }

  static void expect_same(const checkpoint::NamedTensors& a, const checkpoint::NamedTensors& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].first, b[i].first);
      EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
    }
  }

  // Returns the rows of steps before this one.
  static LoggedRows until(LoggedRows rows, int64_t step) {
    std::erase_if(rows, [step](const auto& row) { return row.first >= step; });
    return rows;
  }

  // Returns the step of the checkpoint from which a restart will resume, after a check that it is
  // whole; -1 for none.
  int64_t whole_checkpoint(const std::string& run) const {
    const auto last = checkpoint::find_checkpoint(checkpoints(run), "last");
    if (last.empty()) return -1;
    const auto index = checkpoint::read_index(last);
    EXPECT_EQ(index.files.size(), static_cast<size_t>(ranks_) + 1);
    for (int rank = 0; rank < ranks_; ++rank) checkpoint::load_rank_state(last, rank);
    return index.info.step;
  }

  // Kills the rank `victim`, or all ranks if it is their number.
  void expect_killed(Life& life, int victim, const std::filesystem::path& output) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (victim == rank || victim == ranks_) life.kill(rank);
    }
    for (const int status : life.statuses()) {
      const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      // The other ranks notice the loss, or have ended already.
      const bool has_ended = victim != ranks_ && WIFEXITED(status);
      EXPECT_TRUE(is_killed || has_ended || status == 0) << status << read_file(output);
    }
  }

  // The first kill is that of rank 0 alone.
  void expect_exact(int64_t kills_without_variable = 20) {
    const Stopwatch watch;
    ASSERT_EQ(live("whole").statuses(), unharmed()) << read_file(output());
    const double whole_milliseconds = watch.seconds() * 1e3;
    const auto expected = kept(checkpoint::find_checkpoint(checkpoints("whole"), "last"));

    const int64_t count = number_from("TROIKA_KILLS", kills_without_variable);
    std::mt19937_64 random(static_cast<uint64_t>(number_from("TROIKA_KILL_SEED", 1)));
    std::uniform_real_distribution<double> parts(0, 0.2);
    std::uniform_int_distribution<int> victims(0, ranks_);
    int64_t kills = 0, runs = 0, restarts = 0;
    double patience = 1;  // grows while kills leave no new checkpoint: the machine has become slow
    for (; kills < count; ++runs) {
      const auto run = fmt::format("killed-{}", runs);
      int64_t step = -1;
      for (bool is_over = false; !is_over;) {
        SCOPED_TRACE(fmt::format("{}, kill {}", run, kills));
        restarts += step >= 0;
        Life life = live(run);
        const Milliseconds delay(
            static_cast<int64_t>(patience * parts(random) * whole_milliseconds));
        is_over = kills == count || life.ends_within(delay);
        if (is_over) {
          ASSERT_EQ(life.statuses(), unharmed()) << read_file(output());
        } else {
          const int victim = kills == 0 ? 0 : victims(random);
          ++kills;
          expect_killed(life, victim, output());
        }
        const auto before = std::exchange(step, whole_checkpoint(run));
        ASSERT_GE(step, before) << "a checkpoint was lost";
        patience = step > before ? 1 : 1.5 * patience;
        ASSERT_EQ(until(csv_rows(folder_ / run), step), until(csv_rows(folder_ / "whole"), step));
        ASSERT_EQ(until(jsonl_rows(folder_ / run), step),
                  until(jsonl_rows(folder_ / "whole"), step));
      }
      EXPECT_EQ(csv_rows(folder_ / run), csv_rows(folder_ / "whole"));
      EXPECT_EQ(jsonl_rows(folder_ / run), jsonl_rows(folder_ / "whole"));
      const auto found = kept(checkpoint::find_checkpoint(checkpoints(run), "last"));
      for (size_t rank = 0; rank < expected.size(); ++rank) {
        expect_same(expected[rank].model, found[rank].model);
        expect_same(expected[rank].rest, found[rank].rest);
      }
    }
    EXPECT_GE(restarts, count / 2) << "most kills must leave a checkpoint to resume from";
    fmt::print("{} kills, {} restarts from a checkpoint, {} runs, {:.1f} s\n", kills, restarts,
               runs, watch.seconds());
  }

  std::vector<int> unharmed() const { return std::vector<int>(static_cast<size_t>(ranks_), 0); }

  const TemporaryFolder folder_;
  int ranks_ = 2;
  TrainOptions options_;
  std::function<std::shared_ptr<Task>()> make_task_ = [] { return make_waves_task(8, 0.3); };
};

TEST_F(Kills, EveryRestartGoesOnToTheBit) {
  expect_exact();
}

TEST_F(Kills, AlsoOfWhatIsWrittenBesideTraining) {
  options_.checkpoint.async = "true";
  expect_exact();
}

// Ranks are at different steps when they are killed.
class KillsOfStages : public Kills {
 protected:
  KillsOfStages() {
    ranks_ = 4;
    options_.trainer.strategy = "pipedream";
    options_.checkpoint.every_n_train_steps = 3;
    make_task_ = [] { return std::make_shared<Task>(make_waves_model(8, 0.3)); };
  }
};

TEST_F(KillsOfStages, EveryRestartGoesOnToTheBit) {
  expect_exact(10);
}

TEST_F(KillsOfStages, AlsoWithReplicas) {
  options_.mesh.pipeline = options_.mesh.data = 2;
  expect_exact(10);
}

// Steps of four micro-batches from an older version; the last step of an epoch has two.
TEST_F(KillsOfStages, AlsoOfTwoVersions) {
  options_.trainer.strategy = "pipedream_2bw";
  options_.checkpoint.every_n_train_steps = 1;
  expect_exact(6);
}

}  // namespace
}  // namespace troika::train
