// Scheduler, servers and workers of the strategies of DistBelief and BytePS are processes of their
// own, one of which is killed at a random instant. The others go on as if nothing had happened, or
// end soon with an error that names what was lost.
//
// Processes are forked before any thread is started.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <map>

#include "tests/train/launched_scene.h"
#include "troika/base/random.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

namespace troika::train {
namespace {

constexpr std::array kStrategies{"sandblaster", "downpour", "byteps"};

struct Ended {
  std::vector<int> statuses;
  Milliseconds time{0};        // from the start to the end of all
  Milliseconds since_kill{0};  // from the kill
};

// Runs the scene, and kills a process after some time unless it is -1.
Ended run_scene(Scene scene, int victim, Milliseconds after, const std::filesystem::path& folder) {
  const auto begin = Clock::now();
  const auto life = start_scene(scene, folder);
  auto killed = Clock::now();
  if (victim >= 0 && !life->ends_within(after)) {
    life->kill(victim);
    killed = Clock::now();
    report_end(scene, victim, folder);
  }
  Ended ended{.statuses = end_of(scene, *life, victim != 0)};
  ended.time = std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
  ended.since_kill = std::chrono::duration_cast<Milliseconds>(Clock::now() - killed);
  return ended;
}

// Returns whether the workers that were not killed have finished the run. If not, expects that one
// of them has named the victim. While they join, the others may name the rank that has failed.
bool expect_finished_or_named(const Scene& scene, const Ended& ended, int victim,
                              const std::filesystem::path& folder) {
  const auto failure = scheduler_error(folder);
  auto errors = failure;
  for (int worker = 0; worker < kWorkers; ++worker) {
    const int process = scene.first_worker() + worker;
    if (process == victim) continue;
    const int status = ended.statuses[static_cast<size_t>(process)];
    if (has_exited(status, 0)) continue;
    // It was asked to end when the scheduler had failed.
    if (!failure.empty() && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) continue;
    const auto output = output_of(worker, folder);
    EXPECT_TRUE(has_exited(status, 2)) << status << output;
    const auto at = output.find("error of rank");
    EXPECT_NE(at, std::string::npos) << output;
    if (at != std::string::npos) errors += output.substr(at);
  }
  if (errors.empty()) return true;
  EXPECT_THAT(errors, names(scene, victim));
  return false;
}

int number_from(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text ? static_cast<int>(*parse_int(text)) : otherwise;
}

// scripts/test-distbelief-kills kills more.
TEST(DistBeliefKills, AtRandomInstants) {
  const int kills = number_from("TROIKA_DISTBELIEF_KILLS", 3);
  Random random(static_cast<uint64_t>(number_from("TROIKA_DISTBELIEF_KILL_SEED", 2)));
  std::map<std::pair<std::string, std::vector<int>>, std::pair<Milliseconds, std::vector<double>>>
      undisturbed;
  int finished = 0, named = 0;
  Milliseconds slowest{0};  // from a kill to the end that names it
  for (int kill = 0; kill < kills; ++kill) {
    const std::string strategy = kStrategies[static_cast<size_t>(kill) % kStrategies.size()];
    Scene scene{.strategy = strategy};
    // Every other time, workers of one machine sum first.
    const bool has_machines = strategy == "byteps" && kill / std::ssize(kStrategies) % 2 == 1;
    if (has_machines) scene.machines = {0, 1, 1};
    auto& [time, weights] = undisturbed[{strategy, scene.machines}];
    if (weights.empty()) {
      const TemporaryFolder folder;
      const auto ended = run_scene(scene, -1, {}, folder.path());
      for (int process = scene.first_worker(); process < scene.processes(); ++process) {
        const int status = ended.statuses[static_cast<size_t>(process)];
        ASSERT_TRUE(has_exited(status, 0)) << output_of(0, folder.path());
      }
      time = ended.time;
      weights = weights_of(run_of(0, folder.path()));
    }
    const TemporaryFolder folder;
    const int victim = static_cast<int>(random.below(static_cast<uint64_t>(scene.processes())));
    // Summation servers keep nothing of which there could be copies.
    scene.copies = strategy == "byteps" ? 0 : static_cast<int>(random.below(2));
    const Milliseconds after(random.below(static_cast<uint64_t>(time.count())));
    SCOPED_TRACE(fmt::format("{}{}, process {} of {}, {} copies, after {} ms of {}", strategy,
                             has_machines ? " on machines" : "", victim, scene.processes(),
                             scene.copies, after.count(), time.count()));
    const auto ended = run_scene(scene, victim, after, folder.path());
    const bool have_finished = expect_finished_or_named(scene, ended, victim, folder.path());
    ++(have_finished ? finished : named);
    if (!have_finished) slowest = std::max(slowest, ended.since_kill);
    if (!have_finished || strategy != "sandblaster") continue;
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (scene.first_worker() + worker == victim) continue;
      const auto own = weights_of(run_of(worker, folder.path()));
      ASSERT_EQ(own.size(), weights.size());
      for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], weights[i], 1e-8);
    }
  }
  fmt::print(
      "{{\"kills\": {}, \"went_on\": {}, \"ended_with_the_name\": {}, \"slowest_seconds\": "
      "{:.1f}}}\n",
      kills, finished, named, static_cast<double>(slowest.count()) / 1000);
}

// A replica, also the first one, costs its own work only.
TEST(DistBeliefKills, AReplicaOfSandblasterChangesNothing) {
  const Scene scene{.strategy = "sandblaster"};
  const TemporaryFolder whole;
  const auto undisturbed = run_scene(scene, -1, {}, whole.path());
  for (int process = scene.first_worker(); process < scene.processes(); ++process) {
    const int status = undisturbed.statuses[static_cast<size_t>(process)];
    ASSERT_TRUE(has_exited(status, 0)) << output_of(0, whole.path());
  }
  const auto expected = weights_of(run_of(0, whole.path()));
  for (const int worker : {0, 2}) {
    const TemporaryFolder folder;
    const auto life = start_scene(scene, folder.path());
    while (!std::filesystem::exists(run_of(worker, folder.path()) / "checkpoints/last")) {
      ASSERT_FALSE(life->ends_within(Milliseconds(5))) << output_of(0, folder.path());
    }
    life->kill(scene.first_worker() + worker);
    const auto statuses = end_of(scene, *life);
    EXPECT_TRUE(WIFSIGNALED(statuses[static_cast<size_t>(scene.first_worker() + worker)]));
    for (int other = 0; other < kWorkers; ++other) {
      if (other == worker) continue;
      EXPECT_TRUE(has_exited(statuses[static_cast<size_t>(scene.first_worker() + other)], 0))
          << output_of(other, folder.path());
      const auto last =
          std::filesystem::canonical(run_of(other, folder.path()) / "checkpoints/last").filename();
      EXPECT_EQ(last.string(), fmt::format("epoch={}-step={}", scene.epochs, scene.epochs));
      const auto own = weights_of(run_of(other, folder.path()));
      ASSERT_EQ(own.size(), expected.size());
      for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], expected[i], 1e-8);
    }
  }
}

}  // namespace
}  // namespace troika::train
