// A request to Slurm, checked against the site's table before anything is sent: a job that
// waits for a day to be refused, or runs with one core a GPU, costs more than an error here.
#pragma once

#include <string>
#include <vector>

#include "troika/cluster/slurm/site.h"

namespace troika::cluster::slurm {

struct Job {
  std::string name = "troika";
  int nodes = 1;
  int gpus_per_node = 0;
  int tasks_per_node = 0;  // ranks; 0: one a GPU, and one on a node without
  int cpus_per_task = 0;   // 0: the ranks' share of the node's cores
  std::string partition;
  std::string constraint;
  std::string account;
  std::string qos;
  std::string time;        // see parse_time(); "": the site's default
  std::string memory;      // of a node, as sbatch --mem takes it; "": the site's default
  bool exclusive = false;  // whole nodes
  std::string dependency;  // as sbatch takes it, "afterok:4711"
  std::string reservation;
  std::string array;     // "0-9", "1,3,7", "0-99%4"; "" for none
  std::string output;    // with sbatch's %x, %j, ...; "": <name>-<job id>.out in the current folder
  int signal_lead = 90;  // seconds before the time limit at which the ranks get SIGUSR1; 0: never
  bool requeue = true;   // after a pre-emption, a failed node or that SIGUSR1
  std::vector<std::string> sbatch;  // more of sbatch's options, "--mail-type=END --mail-user=me"
  std::vector<std::string> modules;
  std::vector<std::string> environment;  // NAME=value
  std::vector<std::string> command;      // program and arguments, taken literally
};

// The job with its defaults filled in: tasks_per_node, cpus_per_task, output, the time in the form
// HH:MM:SS, and the only partition that goes with the constraint. A constraint that the partition
// stands for is left out.
//
// `cpus_per_task` is the node's cores x (the job's GPUs / the node's), divided by the ranks.
// Throws Error(slurm, usage) for what the site would refuse or what cannot be meant: more GPUs or
// cores than a node has, more nodes than the partition has, a partition, constraint or QoS the site
// does not have, a time or a number of GPUs beyond what the QoS allows, an account that does not
// pay for these GPUs, --mem where the site forbids it, a warning signal before the start of the
// job.
Job complete(Job job, const Site& site);

// The site's partition of the job; null where the site has no table of partitions.
// A job without `partition` is on the only one that has its `constraint`. Throws Error(slurm,
// usage) for an unknown partition or constraint.
const Partition* find_partition(const Job& job, const Site& site);

}  // namespace troika::cluster::slurm
