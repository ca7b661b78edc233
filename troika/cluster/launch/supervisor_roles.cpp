#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "troika/cluster/discovery/port.h"
#include "troika/cluster/launch/supervisor.h"
#include "troika/cluster/ranks/roles.h"

namespace troika::cluster {

namespace {

// How long scheduler and servers may take to end by themselves after the last worker, if all
// workers have succeeded.
constexpr Milliseconds kTimeToEnd{10'000};

}  // namespace

int Supervisor::run_roles() {
  const int port = options_.master_port != 0 ? options_.master_port : free_port();
  const auto scheduler = fmt::format("127.0.0.1:{}", port);
  const auto secret = secret_of_scheduler(scheduler);
  const LaunchPlace place{.address = "127.0.0.1", .port = free_port(), .run_id = unique_run_id()};
  say(fmt::format("[cluster] scheduler at {0}; troika server status {0}\n", scheduler));
  std::filesystem::remove(logs_.ends());  // left by an earlier launch
  const auto ends = complete_round([&](int process) {
    return StartedProcess{.name = role_of(options_, process).name(),
                          .stem = role_of(options_, process).stem(),
                          .number = process,
                          .log = RankOutput::Log::fresh,
                          .is_shown = process == 1 + options_.roles->servers,
                          .environment = [this, place, scheduler, secret = secret.secret,
                                          process](const auto& error_file) {
                            return role_environment(options_, place, scheduler, secret, process,
                                                    {.error_file = error_file,
                                                     .flight_record = logs_.flight_record(),
                                                     .ends = logs_.ends()});
                          }};
  });
  if (!ends) return static_cast<int>(ExitCode::not_executable);
  return conclude(without_servers(*ends));
}

// A server that was lost is no failure of the run: if values were lost with it, the workers fail.
std::vector<RankEnd> Supervisor::without_servers(std::vector<RankEnd> ends) const {
  std::erase_if(ends,
                [&](const RankEnd& end) { return role_of(options_, end.rank).role == "server"; });
  return ends;
}

void Supervisor::follow_roles() {
  bool has_worker = false, has_failed_worker = false;
  for (const auto& process : processes_.all()) {
    const auto role = role_of(options_, process->end.rank);
    if (!process->has_ended) {
      has_worker = has_worker || role.role == "worker";
      continue;
    }
    const bool is_news = outlived_.announced.insert(process->pid).second;
    const auto& status = process->end.status;
    if (status.ok() || status.saved()) continue;
    has_failed_worker = has_failed_worker || role.role == "worker";
    if (!is_news) continue;
    if (role.role == "scheduler") {
      begin_grace_time();
      return;
    }
    // The scheduler knows whether the run can begin without it.
    std::ofstream(logs_.ends(), std::ios::app)
        << fmt::format("{} {}\n", role.stem(), describe(status));
    outlived_.keeps_logs = true;
    say(fmt::format("[cluster] {}: {}; the launch lets the others run; log: {}\n", role.name(),
                    describe(status), logs_.log(role.stem()).string()));
  }
  if (has_worker) return;
  if (has_failed_worker) return begin_grace_time();
  phase_ = Phase::grace;
  phase_end_ = Deadline::after(kTimeToEnd);
}

}  // namespace troika::cluster
