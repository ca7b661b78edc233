// The limits table of the Jean Zay cluster, and jobs that respect it.
#pragma once

#include "troika/cluster/slurm/job.h"

namespace troika::cluster::slurm {

inline Site jean_zay() {
  return load_site(TROIKA_SITES "/jean-zay.toml");
}

inline Job job_on(const std::string& partition, int gpus, int nodes = 1) {
  Job job;
  job.partition = partition;
  job.gpus_per_node = gpus;
  job.nodes = nodes;
  job.command = {"troika", "train", "run.toml"};
  return job;
}

}  // namespace troika::cluster::slurm
