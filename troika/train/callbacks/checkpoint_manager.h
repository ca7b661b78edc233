// Which checkpoints of a run stay: the rules of Lightning's ModelCheckpoint, without files.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/train/callbacks/monitor.h"

namespace troika::train {

// Knows the checkpoints that a run has written into its folder, by name, and decides which of them
// are removed; every other folder is somebody else's. Ranks that make the same calls decide alike.
//
// The best `save_top_k` by score stay (-1: all, 0: none). Of equal scores the earlier is the best
// and the first to go. Without a monitored metric the latest are the best. The latest checkpoint
// stays too until the next one is written, and one that somebody chose to resume from is never
// removed.
class CheckpointManager {
 public:
  struct Kept {
    std::string name;  // of its folder; empty: of the one that is being written
    double score;
  };
  // The state of a run that goes on, as it is once the next checkpoint is written.
  struct State {
    std::vector<Kept> best;           // best first
    std::vector<std::string> others;  // written by this run, and not among the best
    std::vector<std::string> chosen;  // that somebody chose to resume from
  };

  CheckpointManager(int64_t save_top_k, Monitor monitor)
      : save_top_k_(save_top_k), monitor_(std::move(monitor)) {}

  // Whether a checkpoint of this score would be among the best. A NaN is the worst score.
  bool is_among_best(double score) const;

  // The next checkpoint enters the best with this score.
  void propose(double score) { proposed_ = score; }
  bool has_proposal() const { return proposal().has_value(); }
  // The next checkpoint, proposed or not, is being written.
  void begin_writing();
  // It was written. Returns the names of those to remove.
  std::vector<std::string> finish_writing(const std::string& name);

  // Names, empty where there is none: the first of the best; the one of the best that goes next
  // (Lightning's kth_best_model_path); the latest.
  std::string best() const { return best_.empty() ? "" : best_.front().name; }
  std::string kth_best() const;
  const std::string& latest() const { return latest_; }
  const std::vector<Kept>& all_best() const { return best_; }

  State state() const;
  // Goes on from the checkpoint `name` with the state saved in it. `present` are the folders that
  // are there; `may_remove`: unless it is among the best, the checkpoint goes when the next one is
  // written, and so do leftovers of a kill.
  void resume(const std::string& name, State state, const std::set<std::string>& present,
              bool may_remove);

 private:
  // With the one that is being written, if one is.
  const std::vector<Kept>& current() const { return being_written_ ? *being_written_ : best_; }
  std::vector<Kept> next() const;
  std::optional<double> proposal() const;
  bool is_full(const std::vector<Kept>& best) const;
  using Place = std::vector<Kept>::const_iterator;
  Place worst_of(const std::vector<Kept>& best) const;
  double comparable(double score) const;
  bool is_better(double score, const Kept& kept) const;

  const int64_t save_top_k_;
  const Monitor monitor_;
  std::vector<Kept> best_;  // best first
  std::vector<std::string> others_;
  std::string latest_;
  std::set<std::string> chosen_;  // by somebody, to resume from: these must stay
  std::optional<double> proposed_;
  std::optional<std::vector<Kept>> being_written_;  // what best_ will be
};

}  // namespace troika::train
