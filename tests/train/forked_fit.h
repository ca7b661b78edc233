// A rank of a fit in a process of its own, for tests that kill ranks.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "tests/train/waves.h"
#include "troika/base/clock.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/comm/world/world.h"
#include "troika/train/trainer.h"

namespace troika::train {

// Fits the task to Waves as one of `ranks` ranks of this machine, in this process, which then ends:
// with exit code 0, or with 2 after `error of rank N: ...` was appended to the file `output`.
template <typename MakeTask>
[[noreturn]] void be_rank_of_fit(int rank, int ranks, int port, const std::filesystem::path& output,
                                 const TrainOptions& options, const MakeTask& make_task) {
  const int log = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(log, STDERR_FILENO);
  try {
    cluster::Environment environment;
    environment.rank = environment.local_rank = rank;
    environment.world_size = environment.local_world_size = ranks;
    environment.master_port = port;
    // Ends before the caller's patience if another rank is killed before it has joined.
    const auto group = comm::world(environment, {.join_timeout = Milliseconds(20'000)});
    const auto task = make_task();
    const Waves waves;
    Trainer(options, group).fit(*task, waves, waves);
    ::_exit(0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error of rank {}: {}\n", rank, error.what());
    ::_exit(2);
  }
}

}  // namespace troika::train
