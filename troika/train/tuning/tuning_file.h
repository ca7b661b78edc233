// The file that keeps results of timing on this machine for later runs.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace troika::train {

// One thing that can be done in several ways, in one setting.
struct TuningQuestion {
  std::string what;      // "attention of 48 heads, 256 x 64, BFloat16"
  std::string cpu;       // troika::cpu_model()
  std::string libtorch;  // compat::torch_version()
  int threads = 1;       // of each process

  bool operator==(const TuningQuestion&) const = default;
};

struct TuningEntry {
  TuningQuestion question;
  std::string choice;
  struct Way {
    std::string name;
    double seconds = 0;  // added up over the ranks that timed it
  };
  std::vector<Way> ways;
};

// As the file has it, and `troika doctor --tuning --json`.
nlohmann::ordered_json to_json(const TuningEntry& entry);

// A small JSON file. Any number of processes may use it at once: it is replaced as a whole, so that
// of two that add at the same instant one may lose its entry, which is then timed again.
class TuningFile {
 public:
  // Without a path, nothing is read or kept.
  explicit TuningFile(std::filesystem::path path) : path_(std::move(path)) {}
  // XDG_CACHE_HOME/troika/tuning.json, where that variable is missing in ~/.cache.
  static TuningFile of_user();

  const std::filesystem::path& path() const { return path_; }
  // In the order in which they were added. Empty where there is no file, and, with a warning, where
  // it is none that add() wrote.
  std::vector<TuningEntry> read() const;
  // Empty where there is none.
  std::string choice(const TuningQuestion& question) const;
  // Replaces the entry of the same question. Where it cannot be written, a warning says so.
  void add(const TuningEntry& entry) const;

 private:
  const std::filesystem::path path_;
};

}  // namespace troika::train
