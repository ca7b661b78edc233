#include "troika/cluster/slurm/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/slurm/time_limit.h"

namespace troika::cluster::slurm {

namespace {

[[noreturn]] void refuse_job(const std::string& what, const std::string& got,
                             const std::string& expected, const std::string& hint = "") {
  throw Error("slurm", ErrorKind::usage,
              {.what = what, .got = got, .expected = expected, .hint = hint});
}

std::string one_of(const std::vector<std::string>& names) {
  return names.empty() ? "none" : fmt::format("one of {}", fmt::join(names, ", "));
}

void check_count(const char* what, int got, int low) {
  if (got < low) refuse_job(what, std::to_string(got), fmt::format("an integer >= {}", low));
}

// sbatch reads options from comments, where blanks, quotes and # are not safe.
void check_word(const char* what, const std::string& text) {
  const auto unsafe = [](char c) {
    return (c >= '\0' && c <= ' ') || std::string_view("'\"\\#\x7f").find(c) != std::string::npos;
  };
  if (std::ranges::any_of(text, unsafe)) {
    refuse_job(what, fmt::format("\"{}\"", text),
               "a text without blanks, quotes, backslashes and #");
  }
}

// sbatch options that are set from members of Job.
constexpr const char* kOwnOptions[] = {"-J",           "--job-name",
                                       "-p",           "--partition",
                                       "-C",           "--constraint",
                                       "-A",           "--account",
                                       "-q",           "--qos",
                                       "-N",           "--nodes",
                                       "-c",           "--cpus-per-task",
                                       "-t",           "--time",
                                       "-a",           "--array",
                                       "-o",           "--output",
                                       "-d",           "--dependency",
                                       "-n",           "--ntasks",
                                       "-G",           "--gpus",
                                       "--gres",       "--gpus-per-node",
                                       "--mem",        "--ntasks-per-node",
                                       "--signal",     "--requeue",
                                       "--no-requeue", "--reservation",
                                       "--exclusive"};

void check_more(const std::string& text) {
  const auto is_control = [](char c) { return (c >= '\0' && c < ' ') || c == '\x7f'; };
  if (!text.starts_with('-') || std::ranges::any_of(text, is_control)) {
    refuse_job("--sbatch", fmt::format("\"{}\"", text),
               "options of sbatch in one line, as \"--mail-type=END --mail-user=me\"");
  }
  for (const auto& word : split(text, ' ')) {
    const auto name = word.substr(0, word.find('='));
    if (std::ranges::count(kOwnOptions, name) == 0) continue;
    refuse_job("--sbatch", name, "options that troika slurm does not have itself",
               "troika slurm make --help lists its own");
  }
}

void check_texts(const Job& job) {
  check_word("job name", job.name);
  check_word("partition", job.partition);
  check_word("constraint", job.constraint);
  check_word("account", job.account);
  check_word("QoS", job.qos);
  check_word("memory", job.memory);
  check_word("output", job.output);
  check_word("dependency", job.dependency);
  check_word("reservation", job.reservation);
  for (const auto& more : job.sbatch) check_more(more);
  if (job.name.empty()) refuse_job("job name", "none", "a name");
  static const std::regex array(R"(\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%[1-9]\d*)?)");
  if (!job.array.empty() && !std::regex_match(job.array, array)) {
    refuse_job("array", job.array, "indices such as 0-9, 1,3,7 or 0-99%4");
  }
  static const std::regex variable("[A-Za-z_][A-Za-z0-9_]*");
  for (const auto& entry : job.environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || !std::regex_match(entry.substr(0, equals), variable)) {
      refuse_job("environment variable", fmt::format("\"{}\"", entry), "NAME=value");
    }
  }
  for (const auto& module : job.modules) {
    if (module.empty()) refuse_job("module", "an empty name", "the name of a module");
  }
  if (job.command.empty() || job.command.front().empty()) {
    refuse_job("program to run", "none", "a program and its arguments");
  }
  if (job.command.front().starts_with('-')) {
    refuse_job("program to run", job.command.front(), "a name that does not begin with a dash",
               "srun would take it for an option");
  }
}

void check_memory(const Job& job, const Site& site) {
  if (job.memory.empty() || site.memory_option) return;
  refuse_job("memory", job.memory, fmt::format("none on {}", site.name), site.memory_note);
}

constexpr std::string_view kSelectsBy = "--constraint=";

bool is_selected_by(const Partition& partition, const std::string& constraint) {
  return std::ranges::count(partition.select, std::string(kSelectsBy) + constraint) > 0;
}

// The constraints that a job on this partition may use.
std::vector<std::string> constraints_of(const Partition& partition) {
  auto names = partition.constraints;
  for (const auto& option : partition.select) {
    if (option.starts_with(kSelectsBy)) names.push_back(option.substr(kSelectsBy.size()));
  }
  return names;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  return names.empty() ? "" : fmt::format("did you mean {}?", nearest(word, names));
}

void check_known_constraint(const Job& job, const Site& site) {
  std::vector<std::string> names;
  for (const auto& partition : site.partitions) {
    const auto more = constraints_of(partition);
    names.insert(names.end(), more.begin(), more.end());
  }
  if (job.constraint.empty() || std::ranges::count(names, job.constraint) > 0) return;
  refuse_job(fmt::format("constraint of {}", site.name), job.constraint, one_of(names),
             did_you_mean(job.constraint, names));
}

void check_choices(const Job& job, const Partition& partition) {
  const auto constraints = constraints_of(partition);
  if (!job.constraint.empty() && !std::ranges::count(constraints, job.constraint)) {
    refuse_job(fmt::format("constraint on partition {}", partition.name), job.constraint,
               one_of(constraints));
  }
  if (!job.account.empty() && !job.account.ends_with(partition.account_suffix)) {
    refuse_job(fmt::format("account for partition {}", partition.name), job.account,
               fmt::format("a project's name and {}", partition.account_suffix),
               "hours are counted by kind of node");
  }
  if (!job.qos.empty() && !std::ranges::count(partition.qos, job.qos)) {
    refuse_job(fmt::format("QoS on partition {}", partition.name), job.qos, one_of(partition.qos));
  }
}

void check_nodes(const Job& job, const Partition& partition) {
  if (partition.nodes == 0 || job.nodes <= partition.nodes) return;
  refuse_job("number of nodes", std::to_string(job.nodes),
             fmt::format("at most {}, as partition {} has", partition.nodes, partition.name));
}

void check_gpus(const Job& job, const Partition& partition) {
  const int got = job.gpus_per_node;
  if (partition.gpus == 0 && got > 0) {
    refuse_job("GPUs per node", std::to_string(got),
               fmt::format("0: the nodes of partition {} have none", partition.name));
  }
  if (partition.gpus > 0 && (got < 1 || got > partition.gpus)) {
    refuse_job(
        "GPUs per node", std::to_string(got),
        fmt::format("1 to {}, as a node of partition {} has", partition.gpus, partition.name));
  }
}

void set_cpus(Job& job, const Partition* partition) {
  if (!partition) {
    if (job.cpus_per_task > 0) return;
    // Slurm's default of one core would only be slow.
    refuse_job("cores per task", "none", "a number",
               "without the table of a site nobody knows how many cores a node has");
  }
  if (job.cpus_per_task == 0) {
    const int share = partition->gpus == 0 ? partition->cores
                                           : partition->cores * job.gpus_per_node / partition->gpus;
    job.cpus_per_task = std::max(1, share / job.tasks_per_node);
  }
  if (job.cpus_per_task > partition->cores / job.tasks_per_node) {
    refuse_job("cores per node",
               fmt::format("{} tasks x {}", job.tasks_per_node, job.cpus_per_task),
               fmt::format("at most {}, as a node of partition {} has", partition->cores,
                           partition->name));
  }
}

// Returns a hint at the first QoS of the partition that allows the job.
std::string better_qos(const Job& job, const Site& site, const Partition& partition,
                       std::chrono::seconds time) {
  for (const auto& qos : site.qos) {
    const bool long_enough = qos.time_max.count() == 0 || time <= qos.time_max;
    const bool large_enough = qos.gpus_max == 0 || job.nodes * job.gpus_per_node <= qos.gpus_max;
    if (std::ranges::count(partition.qos, qos.name) && long_enough && large_enough) {
      return fmt::format("--qos={} allows that", qos.name);
    }
  }
  return "";
}

void check_limits(const Job& job, const Site& site, const Partition& partition,
                  std::chrono::seconds time) {
  const auto check_time = [&](std::chrono::seconds limit, const std::string& whose,
                              const std::string& hint) {
    if (limit.count() == 0 || time <= limit) return;
    refuse_job("time", format_time(time), fmt::format("at most {}, {}", format_time(limit), whose),
               hint);
  };
  check_time(partition.time_max, fmt::format("the limit of partition {}", partition.name), "");
  if (partition.qos.empty()) return;
  const std::string name = job.qos.empty() ? partition.qos.front() : job.qos;
  const Qos& qos = *std::ranges::find(site.qos, name, &Qos::name);
  const std::string hint = better_qos(job, site, partition, time);
  check_time(qos.time_max, fmt::format("the limit of QoS {}", name), hint);
  const int gpus = job.nodes * job.gpus_per_node;
  if (qos.gpus_max > 0 && gpus > qos.gpus_max) {
    refuse_job("GPUs of the job", std::to_string(gpus),
               fmt::format("at most {}, the limit of QoS {}", qos.gpus_max, name), hint);
  }
}

std::chrono::seconds time_of(const Job& job, const Partition* partition) {
  if (job.time.empty()) return partition ? partition->time_default : std::chrono::seconds(0);
  const auto time = parse_time(job.time);
  if (!time) refuse_job("time", job.time, "HH:MM:SS, D-HH:MM:SS, MM:SS or minutes");
  return *time;
}

void check_lead(const Job& job, std::chrono::seconds time) {
  constexpr int kLongest = 65535;  // sbatch(1)
  if (job.signal_lead < 0 || job.signal_lead > kLongest) {
    refuse_job("signal lead", std::to_string(job.signal_lead),
               fmt::format("0 to {} seconds", kLongest));
  }
  if (time.count() > 0 && job.signal_lead >= time.count()) {
    refuse_job("signal lead", fmt::format("{} s", job.signal_lead),
               fmt::format("less than the job's time of {}", format_time(time)),
               "it is the time to save before the limit");
  }
}

}  // namespace

const Partition* find_partition(const Job& job, const Site& site) {
  if (site.partitions.empty()) return nullptr;
  check_known_constraint(job, site);
  std::vector<const Partition*> candidates;
  std::vector<std::string> names;
  for (const auto& partition : site.partitions) {
    const bool is_meant = job.partition.empty()
                              ? std::ranges::count(constraints_of(partition), job.constraint) > 0
                              : job.partition == partition.name;
    if (is_meant) candidates.push_back(&partition);
    names.push_back(partition.name);
  }
  if (candidates.size() == 1) return candidates.front();
  refuse_job(fmt::format("partition of {}", site.name),
             job.partition.empty() ? "none" : job.partition, one_of(names),
             job.partition.empty() ? "" : did_you_mean(job.partition, names));
}

Job complete(Job job, const Site& site) {
  check_texts(job);
  check_count("number of nodes", job.nodes, 1);
  check_count("GPUs per node", job.gpus_per_node, 0);
  check_count("tasks per node", job.tasks_per_node, 0);
  check_count("cores per task", job.cpus_per_task, 0);
  const Partition* partition = find_partition(job, site);
  check_memory(job, site);
  if (partition) {
    job.partition = partition->name;
    check_choices(job, *partition);
    if (is_selected_by(*partition, job.constraint)) job.constraint.clear();
    check_nodes(job, *partition);
    check_gpus(job, *partition);
  }
  if (job.tasks_per_node == 0) job.tasks_per_node = std::max(1, job.gpus_per_node);
  if (job.gpus_per_node > 0 && job.tasks_per_node > job.gpus_per_node) {
    refuse_job("tasks per node", std::to_string(job.tasks_per_node),
               fmt::format("at most {}, one for each GPU", job.gpus_per_node));
  }
  set_cpus(job, partition);
  const auto time = time_of(job, partition);
  if (partition) check_limits(job, site, *partition, time);
  check_lead(job, time);
  if (!job.time.empty()) job.time = format_time(time);
  if (job.output.empty()) job.output = job.array.empty() ? "%x-%j.out" : "%x-%A_%a.out";
  return job;
}

}  // namespace troika::cluster::slurm
