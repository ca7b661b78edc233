// A job request to Slurm, checked against the site's table before submission. A job that is refused
// after a day in the queue, or runs with one core per GPU, costs more than an early error.
#pragma once

#include <string>
#include <vector>

#include "troika/cluster/slurm/site.h"

namespace troika::cluster::slurm {

struct Job {
  std::string name = "troika";
  int nodes = 1;
  int gpus_per_node = 0;
  int tasks_per_node = 0;  // number of ranks; 0: one per GPU, or one on a node without GPUs
  int cpus_per_task = 0;   // 0: an equal share of the node's cores
  std::string partition;
  std::string constraint;
  std::string account;
  std::string qos;
  std::string time;        // see parse_time(); "": the site's default
  std::string memory;      // per node, in sbatch's --mem format; "": the site's default
  bool exclusive = false;  // allocate whole nodes
  std::string dependency;  // in sbatch's format, e.g. "afterok:4711"
  std::string reservation;
  std::string array;  // "0-9", "1,3,7", "0-99%4"; "" for none
  // With sbatch's %x, %j, ...; "": <name>-<job id>.out, or <name>-<job id>_<task>.out for an array.
  std::string output;
  int signal_lead = 90;  // how many seconds before the time limit the ranks get SIGUSR1; 0: never
  bool requeue = true;   // after a pre-emption, a node failure or this SIGUSR1
  std::vector<std::string> sbatch;  // further sbatch options, e.g. "--mail-type=END --mail-user=me"
  std::vector<std::string> modules;
  std::vector<std::string> environment;  // NAME=value
  std::vector<std::string> command;      // program and arguments, without shell expansion
};

// Returns the job with its defaults set: tasks_per_node, cpus_per_task, output, the time as
// HH:MM:SS, and the partition if only one matches the constraint. Omits a constraint that the
// partition implies.
//
// `cpus_per_task` is the node's cores x (the job's GPUs / the node's GPUs) / the ranks per node.
// Throws Error(slurm, usage) for a request that the site would refuse or that is likely a mistake:
// more GPUs or cores than a node has; more nodes than the partition has; an unknown partition,
// constraint or QoS; a time above the partition's or the QoS's limit; a number of GPUs above the
// QoS's limit; an account that does not pay for these GPUs; --mem where the site forbids it; a
// warning signal before the start of the job.
Job complete(Job job, const Site& site);

// Returns the job's partition; null if the site has no table of partitions. A job without
// `partition` gets the only partition that has its `constraint`. Throws Error(slurm, usage) for an
// unknown partition or constraint.
const Partition* find_partition(const Job& job, const Site& site);

}  // namespace troika::cluster::slurm
