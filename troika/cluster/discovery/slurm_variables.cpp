// Variables of Slurm's srun: https://slurm.schedmd.com/srun.html "OUTPUT ENVIRONMENT VARIABLES".
#include <fmt/format.h>

#include <numeric>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/host_list.h"
#include "troika/cluster/discovery/launcher_variables.h"

namespace troika::cluster {

namespace {

// Step ids from this value on are special: the interactive, batch and external step (slurm.h).
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

std::optional<int64_t> step_id(const Reader& reader) {
  const auto name = reader.first_of({"SLURM_STEP_ID", "SLURM_STEPID"});
  const auto id = name.empty() ? std::nullopt : parse_int(*reader.text(name));
  return id && *id < kFirstSpecialStep ? id : std::nullopt;
}

// Whether this is an interactive shell and not a task of srun. A step that srun starts from an
// interactive shell inherits the job's name, but has its own number of tasks.
bool interactive(const Reader& reader) {
  const auto name = reader.text("SLURM_JOB_NAME").value_or("");
  if (name != "bash" && name != "interactive") return false;
  const auto tasks = reader.number("SLURM_STEP_NUM_TASKS", 1).value_or(1);
  return !step_id(reader) || tasks == 1;
}

[[noreturn]] void disagree(const std::string& got, const std::string& expected) {
  throw Error("cluster", ErrorKind::usage,
              {.what = "Slurm's variables disagree", .got = got, .expected = expected});
}

// Returns the tasks on each node of the step; empty if Slurm does not provide them exactly.
std::vector<int> tasks_per_node(const Reader& reader, const Environment& found) {
  const auto name = reader.first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (name.empty()) return {};
  const auto counts = expand_counts(*reader.text(name));
  const bool exact = std::accumulate(counts.begin(), counts.end(), 0) == found.world_size &&
                     counts.size() == static_cast<size_t>(found.num_nodes);
  // The job's counts may differ from the step's, but the step's own counts must match.
  if (!exact && name == "SLURM_STEP_TASKS_PER_NODE") {
    disagree(fmt::format("{}={}", name, *reader.text(name)),
             fmt::format("{} tasks on {} nodes", found.world_size, found.num_nodes));
  }
  return exact ? counts : std::vector<int>{};
}

void read_place(const Reader& reader, Environment& found) {
  for (const char* name : {"SLURM_LOCALID", "SLURM_NODEID"}) {
    if (!reader.has(name)) fail_incomplete("SLURM_PROCID", name);
  }
  found.local_rank = reader.require("SLURM_LOCALID", 0);
  found.node_rank = reader.require("SLURM_NODEID", 0);
  const auto nodes =
      reader.first_of({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (nodes.empty()) fail_incomplete("SLURM_PROCID", "SLURM_NNODES");
  found.num_nodes = reader.require(nodes, 1);
  if (found.node_rank >= found.num_nodes) {
    fail_range("SLURM_NODEID", found.node_rank, nodes, found.num_nodes);
  }
  const auto counts = tasks_per_node(reader, found);
  if (!counts.empty()) {
    found.local_world_size = counts[static_cast<size_t>(found.node_rank)];
  } else if (found.world_size % found.num_nodes == 0) {
    found.local_world_size = found.world_size / found.num_nodes;
  } else {
    fail_incomplete(fmt::format("{} tasks on {} nodes", found.world_size, found.num_nodes),
                    "SLURM_STEP_TASKS_PER_NODE");
  }
  if (found.local_rank >= found.local_world_size) {
    fail_range("SLURM_LOCALID", found.local_rank, "tasks on this node", found.local_world_size);
  }
}

}  // namespace

std::optional<int> slurm_step_tasks(const Reader& reader) {
  return step_id(reader) ? reader.number("SLURM_STEP_NUM_TASKS", 1) : std::nullopt;
}

bool has_slurm(const Reader& reader) {
  // In a job of several tasks, Slurm counts as the launcher even if srun did not start this
  // process; read_slurm() then throws.
  const bool several = reader.has("SLURM_JOB_ID") && reader.number("SLURM_NTASKS", 1) > 1;
  const bool there = reader.has("SLURM_STEP_ID") || reader.has("SLURM_STEPID") || several ||
                     (reader.has("SLURM_PROCID") && reader.has("SLURM_NTASKS"));
  return there && !interactive(reader);
}

Environment read_slurm(const Reader& reader) {
  Environment found;
  found.launcher = "slurm";
  const auto size = reader.first_of({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  const auto step = step_id(reader);
  if (const auto tasks = reader.number(size, 1); tasks > 1 && !step) {
    // The batch script itself or a shell of salloc: a single process, with the other tasks not
    // started.
    throw Error("cluster", ErrorKind::usage,
                {.what = "incomplete launch environment",
                 .got = fmt::format("{}={} without SLURM_STEP_ID", size, *tasks),
                 .expected = "both",
                 .hint = fmt::format("start the program with srun or troika launch inside the "
                                     "batch script, or unset {} to run alone",
                                     size)});
  }
  if (!reader.has("SLURM_PROCID")) fail_incomplete("SLURM_STEP_ID", "SLURM_PROCID");
  if (size.empty()) fail_incomplete("SLURM_PROCID", "SLURM_NTASKS");
  found.world_size = reader.require(size, 1);
  found.rank = reader.require("SLURM_PROCID", 0);
  if (found.rank >= found.world_size)
    fail_range("SLURM_PROCID", found.rank, size, found.world_size);
  if (!step) return {};  // a batch script with one task, not started by srun
  if (found.world_size > 1) read_place(reader, found);

  const auto job_name = reader.first_of({"SLURM_JOB_ID", "SLURM_JOBID"});
  if (!job_name.empty()) {
    found.run_id = fmt::format("{}.{}", *reader.text(job_name), step.value_or(0));
  }
  if (found.num_nodes == 1) return found;
  const auto list =
      reader.first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (list.empty()) fail_incomplete("SLURM_PROCID", "SLURM_JOB_NODELIST");
  const auto hosts = expand_hosts(*reader.text(list));
  // A step may use fewer nodes than its job, but not more.
  const bool of_step = list == "SLURM_STEP_NODELIST";
  const auto nodes = static_cast<size_t>(found.num_nodes);
  if (of_step ? hosts.size() != nodes : hosts.size() < nodes) {
    disagree(fmt::format("{}={}", list, *reader.text(list)),
             fmt::format("{} hosts", found.num_nodes));
  }
  found.master_address = hosts.front();
  return found;
}

}  // namespace troika::cluster
