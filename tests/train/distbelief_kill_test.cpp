// Scheduler, servers and workers of the strategies of DistBelief and BytePS are processes of their
// own, one of which is killed at a random instant. The others go on as if nothing had happened, or
// end soon with an error that names what was lost.
//
// Processes are forked before any thread is started.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "tests/train/forked_fit.h"
#include "tests/train/forked_ranks.h"
#include "troika/base/file.h"
#include "troika/base/random.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/port.h"
#include "troika/net/secret.h"
#include "troika/server/world.h"
#include "troika/train/engine/served_exchange.h"

namespace troika::train {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr int kServers = 2, kWorkers = 3;
constexpr int kFirstWorker = 1 + kServers;  // process 0 is the scheduler
constexpr int kProcesses = kFirstWorker + kWorkers;
constexpr int64_t kEpochs = 12;
constexpr std::array kStrategies{"sandblaster", "downpour", "byteps"};

struct Scene {
  std::string strategy;
  int copies = 0;                                             // of ranges
  std::vector<int> machines = std::vector<int>(kWorkers, 0);  // of workers, which are all this one
  int ranks_port = 0, scheduler_port = 0;
};

TrainOptions options_of(const Scene& scene, const std::filesystem::path& folder) {
  TrainOptions options;
  options.run.folder = folder.string();
  options.trainer.strategy = scene.strategy;
  options.trainer.max_epochs = kEpochs;
  options.trainer.precision = "64";
  options.trainer.enable_progress_bar = false;
  options.optimizer.name = "sgd";
  options.optimizer.momentum = 0;
  options.data.batch_size = 2;
  options.server.servers = kServers;
  options.server.replicas = scene.copies;
  options.server.limit_seconds = 1;
  return options;
}

// A step takes some time, so that most instants are in the middle of one.
class SlowTask : public Task {
 public:
  using Task::Task;
  at::Tensor training_step(const data::Batch& batch) override {
    const auto end = Clock::now() + Milliseconds(2);
    while (Clock::now() < end) std::this_thread::yield();
    return Task::training_step(batch);
  }
};

std::shared_ptr<Task> make_slow_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 6), torch::nn::Tanh(), torch::nn::Linear(6, 2));
  fill_with_waves(*net);
  return std::make_shared<SlowTask>(nn::from_sequential(net));
}

[[noreturn]] void be_process(int process, const Scene& scene, const std::filesystem::path& folder) {
  const bool is_worker = process >= kFirstWorker;
  const int index = is_worker ? process - kFirstWorker : std::max(0, process - 1);
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), /*overwrite=*/1);
  };
  set("TROIKA_ROLE", process == 0 ? "scheduler" : is_worker ? "worker" : "server");
  set("TROIKA_ROLE_INDEX", std::to_string(index));
  set("TROIKA_SCHEDULER", fmt::format("127.0.0.1:{}", scene.scheduler_port));
  set("TROIKA_SERVERS", std::to_string(kServers));
  set("TROIKA_WORKERS", std::to_string(kWorkers));
  set("TROIKA_ENDS", (folder / "ends").string());
  set("TROIKA_RUN_SECRET", std::string(64, 'a'));
  const auto options = options_of(scene, folder);
  if (is_worker) {
    be_rank_of_fit(index, scene.machines, scene.ranks_port,
                   folder / fmt::format("output-{}", index), options, make_slow_task);
  }
  const auto output = folder / fmt::format("output-of-{}", process);
  const int log = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(log, STDERR_FILENO);
  try {
    serve_parameters(options, server::find_world());
    ::_exit(0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    ::_exit(2);
  }
}

std::filesystem::path run_of(int worker, const std::filesystem::path& folder) {
  return worker == 0 ? folder / "run" : folder / "run/replicas" / std::to_string(worker);
}

// Returns the numbers of a run's last weights.
std::vector<double> weights_of(const std::filesystem::path& run) {
  const auto file = read_file(run / "checkpoints/last/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  std::vector<double> numbers((file.size() - sizeof header - header) / sizeof(double));
  std::memcpy(numbers.data(), file.data() + sizeof header + header,
              numbers.size() * sizeof(double));
  return numbers;
}

// Returns how all processes end. As a launch does, asks scheduler and servers to end when the
// workers have, and all of them some time after the scheduler has failed. Without it, the workers
// must find that out by themselves.
std::vector<int> end_of(Life& life, bool has_scheduler = true) {
  constexpr Milliseconds kBetween(20), kGrace(1000), kPatience(60'000);
  const auto have_ended = [&](Milliseconds within) {
    return life.end_before(Deadline::after(within), kFirstWorker, kProcesses);
  };
  const auto deadline = Deadline::after(kPatience);
  while (has_scheduler && !deadline.passed() && !have_ended(kBetween)) {
    if (!life.ends_within(Milliseconds(0))) continue;
    if (have_ended(kGrace)) break;
    for (int process = 1; process < kProcesses; ++process) life.kill(process, SIGTERM);
    break;
  }
  const auto workers = life.statuses(kFirstWorker, kProcesses);
  for (int process = 0; process < kFirstWorker; ++process) life.kill(process, SIGTERM);
  auto statuses = life.statuses(0, kFirstWorker);
  statuses.insert(statuses.end(), workers.begin(), workers.end());
  return statuses;
}

struct Ended {
  std::vector<int> statuses;
  Milliseconds time{0};        // from the start to the end of all
  Milliseconds since_kill{0};  // from the kill
};

// Runs the scene, and kills a process after some time unless it is -1.
Ended run_scene(Scene scene, int victim, Milliseconds after, const std::filesystem::path& folder) {
  scene.ranks_port = cluster::free_port();
  scene.scheduler_port = cluster::free_port();
  const auto begin = Clock::now();
  Life life(kProcesses, [&](int process) { be_process(process, scene, folder); });
  auto killed = Clock::now();
  if (victim >= 0 && !life.ends_within(after)) {
    life.kill(victim);
    killed = Clock::now();
    // As a launch does.
    const bool is_worker = victim >= kFirstWorker;
    const int index = is_worker ? victim - kFirstWorker : victim - 1;
    std::ofstream(folder / "ends", std::ios::app)
        << fmt::format("{}-{} killed by SIGKILL (137)\n", is_worker ? "worker" : "server", index);
  }
  Ended ended{.statuses = end_of(life, victim != 0)};
  ended.time = std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
  ended.since_kill = std::chrono::duration_cast<Milliseconds>(Clock::now() - killed);
  return ended;
}

bool has_exited(int status, int code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

std::string output_of(int worker, const std::filesystem::path& folder) {
  const auto file = folder / fmt::format("output-{}", worker);
  return std::filesystem::exists(file) ? read_file(file) : "";
}

// Returns whether the workers that were not killed have finished the run. If not, expects that one
// of them has named the victim. While they join, the others may name the rank that has failed.
bool expect_finished_or_named(const Ended& ended, int victim, const std::filesystem::path& folder) {
  std::string errors;
  const auto log = folder / "output-of-0";
  const auto of_scheduler = std::filesystem::exists(log) ? read_file(log) : "";
  const auto failure = of_scheduler.find("error: ");
  if (failure != std::string::npos) errors = of_scheduler.substr(failure);
  for (int worker = 0; worker < kWorkers; ++worker) {
    const int process = kFirstWorker + worker;
    if (process == victim) continue;
    const int status = ended.statuses[static_cast<size_t>(process)];
    if (has_exited(status, 0)) continue;
    // It was asked to end when the scheduler had failed.
    if (failure != std::string::npos && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM)
      continue;
    const auto output = output_of(worker, folder);
    EXPECT_TRUE(has_exited(status, 2)) << status << output;
    const auto at = output.find("error of rank");
    EXPECT_NE(at, std::string::npos) << output;
    if (at != std::string::npos) errors += output.substr(at);
  }
  if (errors.empty()) return true;
  if (victim == 0) {
    EXPECT_THAT(errors, HasSubstr("scheduler"));
  } else if (victim < kFirstWorker) {
    EXPECT_THAT(errors, AnyOf(HasSubstr(fmt::format("server-{}", victim - 1)),
                              HasSubstr("lost with its servers")));
  } else {
    EXPECT_THAT(errors, AnyOf(HasSubstr(fmt::format("rank {}", victim - kFirstWorker)),
                              HasSubstr(fmt::format("worker-{}", victim - kFirstWorker))));
  }
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
      for (int process = kFirstWorker; process < kProcesses; ++process) {
        const int status = ended.statuses[static_cast<size_t>(process)];
        ASSERT_TRUE(has_exited(status, 0)) << output_of(0, folder.path());
      }
      time = ended.time;
      weights = weights_of(run_of(0, folder.path()));
    }
    const TemporaryFolder folder;
    const int victim = static_cast<int>(random.below(kProcesses));
    // Summation servers keep nothing of which there could be copies.
    scene.copies = strategy == "byteps" ? 0 : static_cast<int>(random.below(2));
    const Milliseconds after(random.below(static_cast<uint64_t>(time.count())));
    SCOPED_TRACE(fmt::format("{}{}, process {} of {}, {} copies, after {} ms of {}", strategy,
                             has_machines ? " on machines" : "", victim, kProcesses, scene.copies,
                             after.count(), time.count()));
    const auto ended = run_scene(scene, victim, after, folder.path());
    const bool have_finished = expect_finished_or_named(ended, victim, folder.path());
    ++(have_finished ? finished : named);
    if (!have_finished) slowest = std::max(slowest, ended.since_kill);
    if (!have_finished || strategy != "sandblaster") continue;
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (kFirstWorker + worker == victim) continue;
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
  for (int process = kFirstWorker; process < kProcesses; ++process) {
    const int status = undisturbed.statuses[static_cast<size_t>(process)];
    ASSERT_TRUE(has_exited(status, 0)) << output_of(0, whole.path());
  }
  const auto expected = weights_of(run_of(0, whole.path()));
  for (const int worker : {0, 2}) {
    const TemporaryFolder folder;
    auto here = scene;
    here.ranks_port = cluster::free_port();
    here.scheduler_port = cluster::free_port();
    Life life(kProcesses, [&](int process) { be_process(process, here, folder.path()); });
    while (!std::filesystem::exists(run_of(worker, folder.path()) / "checkpoints/last")) {
      ASSERT_FALSE(life.ends_within(Milliseconds(5))) << output_of(0, folder.path());
    }
    life.kill(kFirstWorker + worker);
    const auto statuses = end_of(life);
    EXPECT_TRUE(WIFSIGNALED(statuses[static_cast<size_t>(kFirstWorker + worker)]));
    for (int other = 0; other < kWorkers; ++other) {
      if (other == worker) continue;
      EXPECT_TRUE(has_exited(statuses[static_cast<size_t>(kFirstWorker + other)], 0))
          << output_of(other, folder.path());
      const auto last =
          std::filesystem::canonical(run_of(other, folder.path()) / "checkpoints/last").filename();
      EXPECT_EQ(last.string(), fmt::format("epoch={}-step={}", kEpochs, kEpochs));
      const auto own = weights_of(run_of(other, folder.path()));
      ASSERT_EQ(own.size(), expected.size());
      for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], expected[i], 1e-8);
    }
  }
}

}  // namespace
}  // namespace troika::train
