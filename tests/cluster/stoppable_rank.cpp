// stoppable_rank FOLDER: a rank for scripts/test-slurm. Writes the file "started" into FOLDER and
// makes steps until it is asked to save. When all ranks have been asked, rank 0 requeues the job if
// that was the request. In a requeued job it ends with success at once. File names end with the
// number of earlier starts of the job and the rank: "started-0-3".
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <thread>

#include "troika/base/exit_code.h"
#include "troika/base/file.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/cluster/rendezvous/rendezvous.h"
#include "troika/cluster/slurm/commands.h"

namespace {

using namespace troika;
using namespace std::chrono_literals;

ExitCode run(const std::filesystem::path& folder) {
  const auto environment = cluster::discover();
  const auto starts = cluster::process_variable("SLURM_RESTART_COUNT").value_or("0");
  const auto say = [&](const char* what) {
    write_file_atomically(folder / fmt::format("{}-{}-{}", what, starts, environment.rank), "");
  };
  cluster::StopSignals signals(cluster::slurm::may_requeue());
  const auto rendezvous = cluster::Rendezvous::join(environment, Deadline::after(30s));
  say("started");
  if (starts != "0") {
    rendezvous->leave();
    return ExitCode::done;
  }
  while (signals.asked() == cluster::StopRequest::none) std::this_thread::sleep_for(1ms);

  rendezvous->set(fmt::format("asked{}", environment.rank), "");
  for (int rank = 0; rank < environment.world_size; ++rank) {
    rendezvous->get(fmt::format("asked{}", rank), Deadline::after(10s));
  }
  say("saved");
  const bool requeue = signals.asked() == cluster::StopRequest::save_and_requeue;
  rendezvous->leave();
  if (requeue && environment.rank == 0) cluster::slurm::requeue();
  return requeue ? ExitCode::requeued : ExitCode::stopped;
}

}  // namespace

int main(int, char** argv) try {
  return static_cast<int>(run(argv[1]));
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return exit_code(error);
}
