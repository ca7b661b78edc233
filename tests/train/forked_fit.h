// A rank of a fit in a process of its own, for tests that kill ranks.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "tests/train/waves.h"
#include "troika/base/clock.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/comm/world/world.h"
#include "troika/train/trainer.h"

namespace troika::train {

// Fits the task to Waves as one of the ranks of these machines, which are all this one, in this
// process, which then ends: with exit code 0, or with 2 after `error of rank N: ...` was appended
// to the file `output`. Makes the task after the ranks have met.
template <typename MakeTask>
[[noreturn]] void be_rank_of_fit(int rank, const std::vector<int>& machines, int port,
                                 const std::filesystem::path& output, const TrainOptions& options,
                                 const MakeTask& make_task, const Callbacks& callbacks = {}) {
  const int log = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(log, STDERR_FILENO);
  try {
    cluster::Environment environment;
    const auto own = machines.begin() + rank;
    environment.rank = rank;
    environment.local_rank = static_cast<int>(std::count(machines.begin(), own, *own));
    environment.world_size = static_cast<int>(machines.size());
    environment.local_world_size = static_cast<int>(std::ranges::count(machines, *own));
    environment.node_rank = *own;
    environment.num_nodes = 1 + std::ranges::max(machines);
    environment.master_port = port;
    // Ends before the caller's patience if another rank is killed before it has joined.
    const auto group = comm::world(environment, {.join_timeout = Milliseconds(20'000)});
    const auto task = make_task();
    const Waves waves;
    Trainer trainer(options, group);
    for (const auto& callback : callbacks) trainer.add(callback);
    trainer.fit(*task, waves, waves);
    ::_exit(0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error of rank {}: {}\n", rank, error.what());
    ::_exit(2);
  }
}

// The same for ranks of one machine.
template <typename MakeTask>
[[noreturn]] void be_rank_of_fit(int rank, int ranks, int port, const std::filesystem::path& output,
                                 const TrainOptions& options, const MakeTask& make_task) {
  be_rank_of_fit(rank, std::vector<int>(static_cast<size_t>(ranks), 0), port, output, options,
                 make_task);
}

}  // namespace troika::train
