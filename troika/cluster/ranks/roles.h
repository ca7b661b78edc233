// The processes of a parameter server on one machine: one scheduler, servers and workers, instead
// of ranks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/ranks/rank_environment.h"

namespace troika::cluster {

struct ProcessRole {
  std::string role;  // scheduler, server or worker
  int index = 0;     // among the processes of this role

  // "scheduler", "server 0", "worker 1".
  std::string name() const;
  // The same as the beginning of a file name: "worker-1".
  std::string stem() const;
};

// Returns the role of a process of a launch with LaunchOptions::roles, numbered from 0: the
// scheduler, then servers, then workers.
ProcessRole role_of(const LaunchOptions& options, int process);
// 1 scheduler, and the servers and workers.
int processes_of(const RoleOptions& roles);

// Returns the run's secret: that of TROIKA_RUN_SECRET or TROIKA_RUN_SECRET_FILE, or one that is
// derived from the user's secret and the scheduler's address. `troika server status` finds the
// same.
RunSecret secret_of_scheduler(const std::string& address);

// Returns NAME=VALUE entries: those of rank_environment(), in which the workers are the ranks, and
// TROIKA_ROLE, TROIKA_ROLE_INDEX, TROIKA_SCHEDULER, TROIKA_SERVERS, TROIKA_WORKERS, TROIKA_EMBEDDED
// and TROIKA_ENDS. Scheduler and servers get no variable that names a rank or the address of rank
// 0.
std::vector<std::string> role_environment(const LaunchOptions& options, const LaunchPlace& place,
                                          const std::string& scheduler, const net::Secret& secret,
                                          int process, const FailureFiles& files);

}  // namespace troika::cluster
