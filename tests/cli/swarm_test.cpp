// `troika swarm`: peers that are processes, an authority, and the monitor.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/process.h"
#include "tests/cli/saved_weights.h"
#include "troika/net/secret.h"

namespace troika {
namespace {

using testing::HasSubstr;

class SwarmCommands : public testing::Test {
 protected:
  SwarmCommands() {
    ::setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
    ::setenv("TROIKA_RUN_SECRET", net::Secret::random().to_hex().c_str(), /*overwrite=*/1);
    write_file_atomically(folder_ / "run.toml", R"([trainer]
precision = "64-true"
max_steps = 6
enable_progress_bar = false
[model]
name = "mlp"
hidden_width = 8
dropout = 0
[data]
train_samples = 96
validation_samples = 12
global_batch_size = 12
batch_size = 4
[swarm]
discovery_seconds = 0.2
)");
  }
  ~SwarmCommands() override { ::unsetenv("TROIKA_RUN_SECRET"); }

  std::filesystem::path weights(const std::string& run) const {
    return folder_ / "runs" / run / "checkpoints/last/model.safetensors";
  }

  const TemporaryFolder folder_;
};

TEST_F(SwarmCommands, TrainTogetherAndAreWatched) {
  Process first(folder_.path(), "swarm start run.toml --run.name=first --swarm.min_peers=2");
  const auto address = first.word_behind("--peer ");
  Process monitor(folder_.path(), "swarm monitor --once --json --peer " + address);
  ASSERT_EQ(monitor.wait(), 0) << monitor.text();
  const auto page = nlohmann::json::parse(monitor.text());
  EXPECT_EQ(page.at("step"), 0);
  EXPECT_EQ(page.at("target_batch"), 12);
  ASSERT_EQ(page.at("peers").size(), 1U);
  EXPECT_EQ(page.at("peers")[0].at("address"), address);
  Process second(folder_.path(), "swarm join run.toml --run.name=second --peer " + address);
  EXPECT_EQ(second.wait(), 0) << second.text();
  EXPECT_EQ(first.wait(), 0) << first.text();
  expect_same_weights(weights("second"), weights("first"));
  Process late(folder_.path(),
               "swarm join run.toml --comm.join_timeout_seconds=0.5 --peer " + address);
  EXPECT_EQ(late.wait(), 4) << late.text();
  EXPECT_THAT(late.text(), HasSubstr("no peer of the swarm at " + address));
}

TEST_F(SwarmCommands, SimulateWritesWhatEachPeerDid) {
  const std::string command = "swarm simulate --peers 4 --hours 0.01 --numbers 100000";
  Process simulated(folder_.path(), command + " --target-batch 128 --json report.json");
  ASSERT_EQ(simulated.wait(), 0) << simulated.text();
  EXPECT_THAT(simulated.text(), HasSubstr("peers       4 in all, 4 at the end"));
  const auto report = nlohmann::json::parse(read_file(folder_ / "report.json"));
  ASSERT_EQ(report.at("peers").size(), 4U);
  EXPECT_EQ(report.at("peers")[0].at("kind"), "1:200:200:10:10");
  EXPECT_GT(report.at("steps"), 0);
  Process wrong(folder_.path(), command + " --kind 1:100:100:ten:10");
  EXPECT_EQ(wrong.wait(), 2);
  EXPECT_THAT(wrong.text(), HasSubstr("[swarm simulate] --kind; got 1:100:100:ten:10, expected "));
}

TEST_F(SwarmCommands, AuthorityAdmitsThePeersOnItsList) {
  write_file_atomically(folder_ / "list", "# nobody yet\n");
  Process authority(folder_.path(), "swarm authority --key key --list list");
  const auto at = authority.word_behind("--swarm.authority=");
  const auto train = "swarm start run.toml --swarm.identity=own --swarm.authority=" + at;
  Process stranger(folder_.path(), train);
  EXPECT_EQ(stranger.wait(), 2);
  const auto key = stranger.word_behind("the key of this peer is ").substr(0, 64);
  write_file_atomically(folder_ / "list", key + " anna\n");
  authority.word_behind("admits 1 ");
  std::filesystem::rename(folder_ / "list", folder_ / "new list");
  authority.word_behind("the list is as it was: ");
  write_file_atomically(folder_ / "list", key + " anna\n" + std::string(64, '0') + " bob\n");
  authority.word_behind("admits 2 ");
  Process anna(folder_.path(), train);
  EXPECT_EQ(anna.wait(), 0) << anna.text();
  authority.stop();
  EXPECT_EQ(authority.wait(), 0) << authority.text();
}

}  // namespace
}  // namespace troika
