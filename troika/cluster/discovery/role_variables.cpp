// Variables of heterogeneous jobs: https://slurm.schedmd.com/heterogeneous_jobs.html.
#include "troika/cluster/discovery/role_variables.h"

#include <fmt/format.h>

#include <map>

#include "troika/base/error.h"
#include "troika/cluster/discovery/host_list.h"
#include "troika/cluster/discovery/launcher_variables.h"
#include "troika/cluster/discovery/port.h"

namespace troika::cluster {

namespace {

// No srun of a job has this number, whose port would be that of its ranks.
constexpr int64_t kStepOfScheduler = 9973;

[[noreturn]] void refuse(const std::string& got, const std::string& expected) {
  throw Error("cluster", ErrorKind::usage,
              {.what = "TROIKA_ROLE=slurm",
               .got = got,
               .expected = expected,
               .hint = "docs/parameter-server.md has a job script"});
}

struct Component {
  int tasks = 0;
  std::string nodes;
};

Component component(const Reader& reader, int number) {
  const auto tasks = fmt::format("SLURM_NTASKS_HET_GROUP_{}", number);
  const auto nodes = fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", number);
  for (const auto& name : {tasks, nodes}) {
    if (!reader.has(name)) fail_incomplete("SLURM_HET_SIZE", name);
  }
  return {reader.require(tasks, 1), *reader.text(nodes)};
}

}  // namespace

Variables role_variables(const Variables& variables) {
  const Reader reader(variables);
  if (reader.text("TROIKA_ROLE") != "slurm") return variables;
  const int components = reader.number("SLURM_HET_SIZE", 1).value_or(0);
  if (components != 2) {
    refuse(components == 0 ? "no SLURM_HET_SIZE" : fmt::format("SLURM_HET_SIZE={}", components),
           "a heterogeneous job of two components: servers and workers");
  }
  const auto servers = component(reader, 0), workers = component(reader, 1);
  const int tasks = slurm_step_tasks(reader).value_or(0);
  const auto nodes = reader.text("SLURM_STEP_NODELIST").value_or("");
  // Components of a job share no node.
  const bool has_servers = tasks == servers.tasks && nodes == servers.nodes;
  const bool has_workers = tasks == workers.tasks && nodes == workers.nodes;
  if (has_servers == has_workers) {
    refuse(fmt::format("a step of {} tasks on {}", tasks, nodes.empty() ? "no nodes" : nodes),
           fmt::format("all {} tasks on {}, or all {} on {}: an srun for each component",
                       servers.tasks, servers.nodes, workers.tasks, workers.nodes));
  }
  for (const char* const name : {"SLURM_PROCID", "SLURM_JOB_ID"}) {
    if (!reader.has(name)) fail_incomplete("SLURM_HET_SIZE", name);
  }
  const int task = reader.require("SLURM_PROCID", 0);
  std::map<std::string, std::string> own{
      {"TROIKA_ROLE", has_workers ? "worker"
                      : task == 0 ? "scheduler"
                                  : "server"},
      {"TROIKA_ROLE_INDEX", std::to_string(has_workers || task == 0 ? task : task - 1)},
      {"TROIKA_SCHEDULER",
       fmt::format("{}:{}", expand_hosts(servers.nodes).front(),
                   job_port(reader.require("SLURM_JOB_ID", 0), kStepOfScheduler))},
      {"TROIKA_SERVERS", std::to_string(servers.tasks - 1)},
      {"TROIKA_WORKERS", std::to_string(workers.tasks)},
      {"TROIKA_EMBEDDED", servers.tasks == 1 ? "1" : "0"}};
  return [variables, own = std::move(own)](const std::string& name) -> std::optional<std::string> {
    const auto found = own.find(name);
    if (name == "TROIKA_ROLE") return found->second;
    const auto set = variables(name);
    return (set && !set->empty()) || found == own.end() ? set : found->second;
  };
}

}  // namespace troika::cluster
