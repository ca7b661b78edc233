// soak_rank BACKEND FOLDER SECONDS CYCLES PAUSE: a rank that trains, validates, saves and resumes
// repeatedly in one process, until SECONDS have passed or CYCLES cycles are done, with PAUSE
// seconds after each cycle. After each cycle it appends a line of JSON with the resources of this
// process to FOLDER/samples-RANK.jsonl, which scripts/test-soak checks.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/process_usage.h"
#include "tests/train/waves.h"
#include "troika/base/clock.h"
#include "troika/comm/world/world.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

// Strategies take turns. A run is resumed this many times; then a run of the next strategy begins.
constexpr int64_t kCyclesARun = 10;
constexpr std::array<const char*, 4> kStrategies{"ddp", "zero1", "zero3", "diloco"};

TrainOptions options_of(int64_t cycle, const std::filesystem::path& folder) {
  const int64_t strategies = static_cast<int64_t>(kStrategies.size());
  const int64_t resumes = cycle / strategies % kCyclesARun;
  TrainOptions options;
  options.trainer.strategy = kStrategies[static_cast<size_t>(cycle % strategies)];
  options.run.name = options.trainer.strategy;
  options.run.overwrite = true;
  options.trainer.max_epochs = resumes + 1;
  options.trainer.enable_progress_bar = false;
  options.trainer.ckpt_path = resumes > 0 ? "last" : "";
  options.checkpoint.every_n_train_steps = 2;
  options.data.global_batch_size = 8;
  options.optimizer.name = "adamw";
  options.run.folder = folder.string();
  return options;
}

// An epoch with validations and checkpoints, then a validation of the checkpoint.
void train(int64_t cycle, const std::filesystem::path& folder, const comm::Group& group) {
  const auto task = make_waves_task(64, 0.1);
  const Waves waves;
  Trainer trainer(options_of(cycle, folder), group);
  trainer.fit(*task, waves, waves);
  trainer.validate(*task, waves, "last");
}

void run(const std::string& backend, const std::filesystem::path& folder, double seconds,
         int64_t cycles, double pause) {
  comm::WorldOptions world;
  world.backend = backend;
  const auto group = comm::world(world);
  std::filesystem::create_directories(folder);
  std::ofstream samples(folder / fmt::format("samples-{}.jsonl", group.rank()), std::ios::app);
  const Stopwatch watch;
  for (int64_t cycle = 0;; ++cycle) {
    const bool wants_more = watch.seconds() < seconds && cycle < cycles;
    if (group.broadcast_text(wants_more ? "go on" : "stop") == "stop") return;
    train(cycle, folder, group);
    const auto usage = test::process_usage();
    samples
        << fmt::format(
               R"({{"second": {:.1f}, "cycle": {}, "resident_bytes": {}, "shared_bytes": {}, "descriptors": {}}})",
               watch.seconds(), cycle, usage.resident_bytes, usage.shared_bytes, usage.descriptors)
        << std::endl;
    // Limits the processor time of the test. The ranks wait for each other in broadcast_text().
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
  }
}

}  // namespace
}  // namespace troika::train

int main(int argc, char** argv) try {
  if (argc != 6) {
    std::fprintf(stderr, "usage: soak_rank BACKEND FOLDER SECONDS CYCLES PAUSE\n");
    return 2;
  }
  troika::train::run(argv[1], argv[2], std::stod(argv[3]), std::stoll(argv[4]), std::stod(argv[5]));
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
