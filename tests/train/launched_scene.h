// Runs whose scheduler, servers and workers are processes forked from a test, for tests that kill
// one of them. Fork before any thread is started.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/train/forked_fit.h"
#include "tests/train/forked_ranks.h"
#include "troika/base/file.h"
#include "troika/cluster/discovery/port.h"
#include "troika/net/secret.h"
#include "troika/server/world.h"
#include "troika/train/engine/served_exchange.h"

namespace troika::train {

constexpr int kServers = 2, kWorkers = 3;

// Called when a process comes to a place in the code of this name: `start`, `joined`, `compute`,
// `evaluate`, `save` or `end`.
using PlaceHook = std::function<void(const std::string& place)>;

struct Scene {
  std::string strategy;
  int copies = 0;                                             // of ranges
  std::vector<int> machines = std::vector<int>(kWorkers, 0);  // of workers, which are all this one
  // Servers and scheduler are threads of the workers, which are the only processes.
  bool is_embedded = false;
  int64_t epochs = 12;
  // Called in each process at its start. Returns its hook.
  std::function<PlaceHook(int process)> hook_of = {};
  int ranks_port = 0, scheduler_port = 0;

  // Process 0 is the scheduler if it has one of its own, and workers are the last processes.
  int first_worker() const { return is_embedded ? 0 : 1 + kServers; }
  int processes() const { return first_worker() + kWorkers; }
  bool is_worker(int process) const { return process >= first_worker(); }
  // The number of a worker or server among its kind.
  int index(int process) const {
    return is_worker(process) ? process - first_worker() : std::max(0, process - 1);
  }
};

inline TrainOptions options_of(const Scene& scene, const std::filesystem::path& folder) {
  TrainOptions options;
  options.run.folder = folder.string();
  options.trainer.strategy = scene.strategy;
  options.trainer.max_epochs = scene.epochs;
  options.trainer.precision = "64";
  options.trainer.enable_progress_bar = false;
  options.optimizer.name = "sgd";
  options.optimizer.momentum = 0;
  options.data.batch_size = 2;
  options.server.servers = scene.strategy == "byteps" && scene.is_embedded ? 0 : kServers;
  options.server.replicas = scene.copies;
  options.server.limit_seconds = 1;
  options.byteps.partition_bytes = 64;  // so that each server has some
  return options;
}

// A step takes some time, so that most instants are in the middle of one.
class SlowTask : public Task {
 public:
  SlowTask(std::shared_ptr<nn::Model> model, PlaceHook hook)
      : Task(std::move(model)), hook_(std::move(hook)) {}
  at::Tensor training_step(const data::Batch& batch) override {
    hook_("compute");
    const auto end = Clock::now() + Milliseconds(2);
    while (Clock::now() < end) std::this_thread::yield();
    return Task::training_step(batch);
  }
  void validation_step(const data::Batch& batch, Evaluation& evaluation) override {
    hook_("evaluate");
    Task::validation_step(batch, evaluation);
  }
  void on_fit_end(FitContext&) override { hook_("end"); }

 private:
  const PlaceHook hook_;
};

class SaveHook : public Callback {
 public:
  explicit SaveHook(PlaceHook hook) : hook_(std::move(hook)) {}
  std::string name() const override { return "save_hook"; }
  void on_save_checkpoint(FitContext&) override { hook_("save"); }

 private:
  const PlaceHook hook_;
};

[[noreturn]] inline void be_process(int process, const Scene& scene,
                                    const std::filesystem::path& folder) {
  const auto hook = scene.hook_of ? scene.hook_of(process) : PlaceHook([](const auto&) {});
  hook("start");
  const int index = scene.index(process);
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), /*overwrite=*/1);
  };
  set("TROIKA_RUN_SECRET", std::string(64, 'a'));
  if (!scene.is_embedded) {
    set("TROIKA_ROLE", process == 0 ? "scheduler" : scene.is_worker(process) ? "worker" : "server");
    set("TROIKA_ROLE_INDEX", std::to_string(index));
    set("TROIKA_SCHEDULER", fmt::format("127.0.0.1:{}", scene.scheduler_port));
    set("TROIKA_SERVERS", std::to_string(kServers));
    set("TROIKA_WORKERS", std::to_string(kWorkers));
    set("TROIKA_ENDS", (folder / "ends").string());
  }
  const auto options = options_of(scene, folder);
  if (scene.is_worker(process)) {
    const auto make_task = [&] {
      hook("joined");
      torch::nn::Sequential net(torch::nn::Linear(3, 6), torch::nn::Tanh(),
                                torch::nn::Linear(6, 2));
      fill_with_waves(*net);
      return std::make_shared<SlowTask>(nn::from_sequential(net), hook);
    };
    be_rank_of_fit(index, scene.machines, scene.ranks_port,
                   folder / fmt::format("output-{}", index), options, make_task,
                   {std::make_shared<SaveHook>(hook)});
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

// Starts the processes of a scene, which listen at free ports.
inline std::unique_ptr<Life> start_scene(Scene scene, const std::filesystem::path& folder) {
  scene.ranks_port = cluster::free_port();
  scene.scheduler_port = cluster::free_port();
  return std::make_unique<Life>(scene.processes(),
                                [&](int process) { be_process(process, scene, folder); });
}

// Writes down that a server or worker was killed, as a launch does.
inline void report_end(const Scene& scene, int victim, const std::filesystem::path& folder) {
  if (scene.is_embedded || victim == 0) return;
  std::ofstream(folder / "ends", std::ios::app)
      << fmt::format("{}-{} killed by SIGKILL (137)\n",
                     scene.is_worker(victim) ? "worker" : "server", scene.index(victim));
}

inline std::filesystem::path run_of(int worker, const std::filesystem::path& folder) {
  return worker == 0 ? folder / "run" : folder / "run/replicas" / std::to_string(worker);
}

// Returns the numbers of a run's last weights.
inline std::vector<double> weights_of(const std::filesystem::path& run) {
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
inline std::vector<int> end_of(const Scene& scene, Life& life, bool has_scheduler = true) {
  constexpr Milliseconds kBetween(20), kGrace(1000), kPatience(60'000);
  const auto first = static_cast<size_t>(scene.first_worker());
  const auto all = static_cast<size_t>(scene.processes());
  const auto have_ended = [&](Milliseconds within) {
    return life.end_before(Deadline::after(within), first, all);
  };
  const auto deadline = Deadline::after(kPatience);
  while (has_scheduler && !deadline.passed() && !have_ended(kBetween)) {
    if (!life.ends_within(Milliseconds(0))) continue;
    if (have_ended(kGrace)) break;
    for (int process = 1; process < scene.processes(); ++process) life.kill(process, SIGTERM);
    break;
  }
  const auto workers = life.statuses(first, all);
  for (int process = 0; process < scene.first_worker(); ++process) life.kill(process, SIGTERM);
  auto statuses = life.statuses(0, first);
  statuses.insert(statuses.end(), workers.begin(), workers.end());
  return statuses;
}

inline bool has_exited(int status, int code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

inline std::string output_of(int worker, const std::filesystem::path& folder) {
  const auto file = folder / fmt::format("output-{}", worker);
  return std::filesystem::exists(file) ? read_file(file) : "";
}

// Returns the scheduler's error; empty if it has not failed.
inline std::string scheduler_error(const std::filesystem::path& folder) {
  const auto log = folder / "output-of-0";
  const auto text = std::filesystem::exists(log) ? read_file(log) : "";
  const auto failure = text.find("error: ");
  return failure == std::string::npos ? "" : text.substr(failure);
}

// Matches an error that names the process.
inline testing::Matcher<const std::string&> names(const Scene& scene, int victim) {
  using testing::AnyOf;
  using testing::HasSubstr;
  const int index = scene.index(victim);
  if (scene.is_embedded && victim == 0) {
    return AnyOf(HasSubstr("rank 0"), HasSubstr("worker-0"), HasSubstr("scheduler"));
  }
  if (scene.is_worker(victim)) {
    return AnyOf(HasSubstr(fmt::format("rank {}", index)),
                 HasSubstr(fmt::format("worker-{}", index)));
  }
  if (victim == 0) return HasSubstr("scheduler");
  return AnyOf(HasSubstr(fmt::format("server-{}", index)), HasSubstr("lost with its servers"));
}

}  // namespace troika::train
