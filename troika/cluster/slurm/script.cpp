#include "troika/cluster/slurm/script.h"

#include <fmt/format.h>

#include <algorithm>

namespace troika::cluster::slurm {

namespace {

std::string directives(const Job& job, const Site& site) {
  std::string out;
  const auto say = [&](std::string_view option) { out += fmt::format("#SBATCH {}\n", option); };
  const auto set = [&](std::string_view name, const auto& value) {
    say(fmt::format("--{}={}", name, value));
  };
  const auto set_if_given = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) set(name, value);
  };
  set("job-name", job.name);
  set_if_given("account", job.account);
  if (const auto* partition = find_partition(job, site)) {
    for (const auto& option : partition->select) say(option);
  } else {
    set_if_given("partition", job.partition);
  }
  set_if_given("constraint", job.constraint);
  set_if_given("qos", job.qos);
  set("nodes", job.nodes);
  set("ntasks-per-node", job.tasks_per_node);
  if (job.gpus_per_node > 0) say(fmt::format("--gres=gpu:{}", job.gpus_per_node));
  set("cpus-per-task", job.cpus_per_task);
  set_if_given("hint", site.hint);
  set_if_given("mem", job.memory);
  set_if_given("time", job.time);
  if (job.exclusive) say("--exclusive");
  set_if_given("reservation", job.reservation);
  set_if_given("dependency", job.dependency);
  set_if_given("array", job.array);
  set("output", job.output);
  say("--open-mode=append");  // a requeued job must not overwrite its earlier output
  if (job.signal_lead > 0) set("signal", fmt::format("USR1@{}", job.signal_lead));
  say(job.requeue ? "--requeue" : "--no-requeue");
  for (const auto& more : job.sbatch) say(more);
  return out;
}

std::string modules(const Job& job, const Site& site) {
  std::vector<std::string> names;
  if (const auto* partition = find_partition(job, site)) names = partition->modules;
  names.insert(names.end(), job.modules.begin(), job.modules.end());
  if (names.empty() && !site.module_purge) return "";
  std::string out = "module purge\n";
  // The exit code of usage errors: without its modules, a retry of the job cannot succeed.
  for (const auto& name : names)
    out += fmt::format("module load {} || exit 2\n", shell_quote(name));
  return out;
}

std::string environment(const Job& job) {
  std::string out = fmt::format("export OMP_NUM_THREADS={}\n", job.cpus_per_task);
  // Generated where the job runs, so that it is neither in the script nor in a command line.
  out +=
      "TROIKA_RUN_SECRET=$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \\n')\n"
      "export TROIKA_RUN_SECRET\n";
  if (!job.requeue) out += "export TROIKA_REQUEUE=0\n";
  for (const auto& entry : job.environment) {
    const size_t equals = entry.find('=');
    out += fmt::format("export {}={}\n", entry.substr(0, equals),
                       shell_quote(entry.substr(equals + 1)));
  }
  return out;
}

}  // namespace

std::string shell_quote(std::string_view word) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, plain)) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += R"('\'')";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string make_script(const Job& job, const Site& site) {
  const Job full = complete(job, site);
  std::string out =
      "#!/bin/bash\n" + directives(full, site) + "\n" + modules(full, site) + environment(full) +
      fmt::format("exec srun --kill-on-bad-exit=0 --cpus-per-task={}", full.cpus_per_task);
  for (const auto& word : full.command) out += " " + shell_quote(word);
  return out + "\n";
}

}  // namespace troika::cluster::slurm
