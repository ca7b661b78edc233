// The file that keeps timing results of this machine for later runs.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace troika::train {

// A choice between several candidates in one setting.
struct TuningQuestion {
  std::string what;      // "attention of 48 heads, 256 x 64, BFloat16"
  std::string cpu;       // troika::cpu_model()
  std::string libtorch;  // compat::torch_version()
  int threads = 1;       // per process

  bool operator==(const TuningQuestion&) const = default;
};

struct TuningEntry {
  TuningQuestion question;
  std::string choice;
  struct Candidate {
    std::string name;
    double seconds = 0;  // summed over the ranks that timed it
  };
  std::vector<Candidate> candidates;
};

// As in the file and in `troika doctor --tuning --json`.
nlohmann::ordered_json to_json(const TuningEntry& entry);

// A small JSON file that any number of processes may use at once. Each write replaces the whole
// file, so of two entries added at the same instant one may be lost, and is then timed again.
class TuningFile {
 public:
  // With an empty path, nothing is read or stored.
  explicit TuningFile(std::filesystem::path path) : path_(std::move(path)) {}
  // XDG_CACHE_HOME/troika/tuning.json, or ~/.cache/troika/tuning.json without that variable.
  static TuningFile of_user();

  const std::filesystem::path& path() const { return path_; }
  // Returns the entries in the order in which they were added. Empty without a file. If the file
  // was not written by add(), logs a warning and returns an empty list.
  std::vector<TuningEntry> read() const;
  // Empty if the file has no answer.
  std::string choice(const TuningQuestion& question) const;
  // Adds an entry, or replaces that of the same question. Logs a warning if the file cannot be
  // written.
  void add(const TuningEntry& entry) const;

 private:
  const std::filesystem::path path_;
};

}  // namespace troika::train
