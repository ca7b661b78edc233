// A computing centre's nodes and job limits, read from a file.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace troika::cluster::slurm {

struct Partition {
  std::string name;                      // as users call it; Slurm gets `select`
  int cores = 0;                         // per node
  int gpus = 0;                          // per node
  int nodes = 0;                         // of the partition; 0: unknown
  std::vector<std::string> select;       // sbatch options that select it; default: --partition=NAME
  std::vector<std::string> constraints;  // a job may add one of these
  std::string account_suffix;            // required suffix of the account, e.g. "@v100"; "": none
  std::vector<std::string> modules;      // loaded before all others
  std::chrono::seconds time_default{0};  // for a job without a time; 0: unknown
  std::chrono::seconds time_max{0};      // 0: unknown
  std::vector<std::string> qos;          // names in Site::qos; the first is the default
};

struct Qos {
  std::string name;
  std::chrono::seconds time_max{0};  // 0: unknown
  int gpus_max = 0;                  // per job; 0: unknown
};

// Without partitions, jobs are not checked against limits.
struct Site {
  std::string name;           // name of the file, without .toml
  std::string hint;           // value of sbatch --hint; "": none
  bool module_purge = false;  // jobs without modules also purge those of the login shell
  bool memory_option = true;  // --mem is allowed
  std::string memory_note;    // what to do instead of --mem
  std::vector<Partition> partitions;
  std::vector<Qos> qos;
};

// Reads `hint`, `module_purge`, `memory_option`, `memory_note`, `[partition.NAME]` and
// `[qos.NAME]`, whose keys are the members above; share/troika/sites/jean-zay.toml is an example.
// Throws Error(slurm, usage): with file and line for unknown keys and wrong types or values; also
// for a QoS without a table.
Site load_site(const std::filesystem::path& file);

}  // namespace troika::cluster::slurm
