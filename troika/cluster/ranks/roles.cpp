#include "troika/cluster/ranks/roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>

namespace troika::cluster {

std::string ProcessRole::name() const {
  return role == "scheduler" ? role : fmt::format("{} {}", role, index);
}

std::string ProcessRole::stem() const {
  return role == "scheduler" ? role : fmt::format("{}-{}", role, index);
}

ProcessRole role_of(const LaunchOptions& options, int process) {
  if (process == 0) return {.role = "scheduler"};
  if (process <= options.roles->servers) return {.role = "server", .index = process - 1};
  return {.role = "worker", .index = process - 1 - options.roles->servers};
}

int processes_of(const RoleOptions& roles) {
  return 1 + roles.servers + roles.workers;
}

RunSecret secret_of_scheduler(const std::string& address) {
  return find_secret("parameter server " + address);
}

std::vector<std::string> role_environment(const LaunchOptions& options, const LaunchPlace& place,
                                          const std::string& scheduler, const net::Secret& secret,
                                          int process, const FailureFiles& files) {
  const auto role = role_of(options, process);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int busy = options.roles->servers + options.roles->workers;
  auto ranks = options;
  ranks.processes = options.roles->workers;
  std::map<std::string, std::string> variables{
      {"OMP_NUM_THREADS", std::to_string(std::max(1, cores / busy))}};
  if (const char* const set = std::getenv("OMP_NUM_THREADS")) variables["OMP_NUM_THREADS"] = set;
  for (const auto& text : rank_environment(ranks, place, secret, role.index, files)) {
    const size_t equals = text.find('=');
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  if (role.role != "worker") {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                             "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
      variables.erase(name);
    }
  }
  variables["TROIKA_ROLE"] = role.role;
  variables["TROIKA_ROLE_INDEX"] = std::to_string(role.index);
  variables["TROIKA_SCHEDULER"] = scheduler;
  variables["TROIKA_SERVERS"] = std::to_string(options.roles->servers);
  variables["TROIKA_WORKERS"] = std::to_string(options.roles->workers);
  variables["TROIKA_EMBEDDED"] = options.roles->servers == 0 ? "1" : "0";
  variables["TROIKA_ENDS"] = files.ends.string();
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(fmt::format("{}={}", name, value));
  return entries;
}

}  // namespace troika::cluster
