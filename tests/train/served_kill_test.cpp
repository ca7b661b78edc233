// A rank of a run on servers is killed: the other rank ends with an error that names it.
// Replicas of a Downpour SGD go on.
//
// Ranks are processes that are forked before any thread is started.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>

#include "tests/train/forked_fit.h"
#include "tests/train/forked_ranks.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/discovery/port.h"

namespace troika::train {
namespace {

constexpr int kServedRanks = 2;

[[noreturn]] void be_served_rank(int rank, int port, const std::filesystem::path& folder,
                                 const std::string& strategy) {
  TrainOptions options;
  options.run.folder = folder.string();
  options.trainer.strategy = strategy;
  options.trainer.max_steps = 1'000'000;
  options.trainer.enable_progress_bar = false;
  options.data.global_batch_size = 4;
  options.server.limit_seconds = 1;
  be_rank_of_fit(rank, kServedRanks, port, folder / "output", options,
                 [] { return make_waves_task(8, 0.3); });
}

void expect_named(int victim, const std::string& strategy = "parameter_server") {
  const TemporaryFolder folder;
  const int port = cluster::free_port();
  Life life(kServedRanks, [&](int rank) { be_served_rank(rank, port, folder.path(), strategy); });
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

TEST(ServedKills, ARankWithASummationServerIsLost) {
  expect_named(1, "byteps");
}

TEST(ServedKills, TheRankOfTheSchedulerOfSummationServersIsLost) {
  expect_named(0, "byteps");
}

constexpr int kReplicas = 4;
constexpr int64_t kDownpourEpochs = 15;

// Each process has a server, whose ranges another one has, too.
[[noreturn]] void be_replica(int rank, int port, const std::filesystem::path& folder) {
  TrainOptions options;
  options.run.folder = folder.string();
  options.trainer.strategy = "downpour";
  options.trainer.max_epochs = kDownpourEpochs;
  options.trainer.enable_progress_bar = false;
  options.optimizer.name = "sgd";
  options.optimizer.momentum = 0;
  options.data.global_batch_size = 8;
  options.server.replicas = 1;
  options.server.limit_seconds = 1;
  be_rank_of_fit(rank, kReplicas, port, folder / "output", options,
                 [] { return make_waves_task(8, 0.3); });
}

// Returns how the replicas end if one is killed after its first checkpoint.
std::vector<int> kill_replica(int victim, const std::filesystem::path& folder) {
  const int port = cluster::free_port();
  Life life(kReplicas, [&](int rank) { be_replica(rank, port, folder); });
  const auto run = folder / "run";
  const auto own = victim == 0 ? run : run / "replicas" / std::to_string(victim);
  while (!std::filesystem::exists(own / "checkpoints/last")) {
    if (life.ends_within(Milliseconds(10))) break;
  }
  life.kill(victim);
  return life.statuses();
}

// Returns the bytes of the tensors in the last checkpoint of a run.
std::string numbers_of(const std::filesystem::path& run) {
  const auto file = read_file(run / "checkpoints/last/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  return file.substr(sizeof header + header);
}

// The epochs' checkpoints of the others are whole: each was a cut of the replicas that were left.
TEST(ServedKills, ALostReplicaCostsItsOwnWorkOnly) {
  const TemporaryFolder folder;
  const auto statuses = kill_replica(2, folder.path());
  for (int replica = 0; replica < kReplicas; ++replica) {
    const int status = statuses[static_cast<size_t>(replica)];
    if (replica == 2) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
      continue;
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << read_file(folder / "output");
    const auto run =
        replica == 0 ? folder / "run" : folder / "run/replicas" / std::to_string(replica);
    const auto last = std::filesystem::canonical(run / "checkpoints/last").filename().string();
    EXPECT_EQ(last, fmt::format("epoch={}-step={}", kDownpourEpochs, kDownpourEpochs * 3));
    EXPECT_EQ(numbers_of(run), numbers_of(folder / "run"));
  }
}

TEST(ServedKills, ReplicasEndWithTheReplicaOfTheScheduler) {
  const TemporaryFolder folder;
  const auto statuses = kill_replica(0, folder.path());
  const auto output = read_file(folder / "output");
  for (int replica = 1; replica < kReplicas; ++replica) {
    const int status = statuses[static_cast<size_t>(replica)];
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status;
    const auto error = output.find(fmt::format("error of rank {}: ", replica));
    ASSERT_NE(error, std::string::npos) << output;
    EXPECT_THAT(output.substr(error), testing::HasSubstr("scheduler")) << output;
  }
}

}  // namespace
}  // namespace troika::train
