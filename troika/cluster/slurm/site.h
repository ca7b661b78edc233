// A computing centre's nodes, and the limits of its jobs: a table, read from a file.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace troika::cluster::slurm {

struct Partition {
  std::string name;                      // as people call it; `select` is what Slurm is told
  int cores = 0;                         // of a node
  int gpus = 0;                          // of a node
  int nodes = 0;                         // of the partition; 0: not known
  std::vector<std::string> select;       // sbatch options that choose it; default: --partition=NAME
  std::vector<std::string> constraints;  // that a job may add, one of them
  std::string account_suffix;            // "@v100": the account pays these hours, "" for any
  std::vector<std::string> modules;      // to be loaded before all others
  std::chrono::seconds time_default{0};  // of a job that names none; 0: not known
  std::chrono::seconds time_max{0};      // 0: not known
  std::vector<std::string> qos;          // names in Site::qos, the first of a job that names none
};

struct Qos {
  std::string name;
  std::chrono::seconds time_max{0};  // 0: not known
  int gpus_max = 0;                  // of a whole job; 0: not known
};

// One without partitions knows nothing and lets everything pass.
struct Site {
  std::string name;           // the file's, without .toml
  std::string hint;           // of sbatch --hint, "" for none
  bool module_purge = false;  // whether jobs that load no module drop those of the login shell, too
  bool memory_option = true;  // whether --mem may be given
  std::string memory_note;    // what to do instead
  std::vector<Partition> partitions;
  std::vector<Qos> qos;
};

// Reads `hint`, `module_purge`, `memory_option`, `memory_note`, `[partition.NAME]` and
// `[qos.NAME]`, whose keys are the members above; share/troika/sites/jean-zay.toml is an example.
// Throws Error(slurm, usage) naming file and line for unknown keys, wrong types and values, and a
// QoS without its table.
Site load_site(const std::filesystem::path& file);

}  // namespace troika::cluster::slurm
