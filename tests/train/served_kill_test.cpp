// A rank of a run on parameter servers is killed: the other rank ends with an error that names it.
//
// Ranks are processes that are forked before any thread is started.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/train/forked_fit.h"
#include "tests/train/forked_ranks.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/discovery/port.h"

namespace troika::train {
namespace {

constexpr int kServedRanks = 2;

[[noreturn]] void be_served_rank(int rank, int port, const std::filesystem::path& folder) {
  TrainOptions options;
  options.run.folder = folder.string();
  options.trainer.strategy = "parameter_server";
  options.trainer.max_steps = 1'000'000;
  options.trainer.enable_progress_bar = false;
  options.data.global_batch_size = 4;
  options.server.limit_seconds = 1;
  be_rank_of_fit(rank, kServedRanks, port, folder / "output", options,
                 [] { return make_waves_task(8, 0.3); });
}

void expect_named(int victim) {
  const TemporaryFolder folder;
  const int port = cluster::free_port();
  Life life(kServedRanks, [&](int rank) { be_served_rank(rank, port, folder.path()); });
  const auto checkpoint = folder / "run/checkpoints/last";
  while (!std::filesystem::exists(checkpoint)) {
    ASSERT_FALSE(life.ends_within(Milliseconds(10))) << read_file(folder / "output");
  }
  life.kill(victim);
  const auto statuses = life.statuses();
  const int other = statuses[static_cast<size_t>(1 - victim)];
  EXPECT_TRUE(WIFEXITED(other) && WEXITSTATUS(other) == 2) << other;
  const auto output = read_file(folder / "output");
  const auto error = output.find(fmt::format("error of rank {}: ", 1 - victim));
  ASSERT_NE(error, std::string::npos) << output;
  EXPECT_THAT(output.substr(error), testing::HasSubstr(fmt::format("rank {} is gone", victim)));
}

TEST(ServedKills, ARankIsLost) {
  expect_named(1);
}

TEST(ServedKills, TheRankOfTheSchedulerIsLost) {
  expect_named(0);
}

}  // namespace
}  // namespace troika::train
