// Decides which checkpoints of a run to keep: the rules of Lightning's ModelCheckpoint, without
// file access.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/train/callbacks/monitor.h"

namespace troika::train {

// Tracks by name the checkpoints that a run has written into its folder, and decides which of them
// to remove. Never removes other folders. The decisions depend only on the calls, so they are the
// same on all ranks.
//
// Keeps the best `save_top_k` checkpoints by score (-1: all, 0: none). Among equal scores, the
// earlier checkpoint counts as better for best(), and is removed first. Without a monitored metric,
// the latest checkpoints are the best. The latest checkpoint is also kept until the next one is
// written. A checkpoint that a user resumed from by its name is never removed.
class CheckpointManager {
 public:
  struct Kept {
    std::string name;  // the folder's name; empty for the checkpoint that is being written
    double score;
  };
  // The state to save, as it will be when the next checkpoint is written.
  struct State {
    std::vector<Kept> best;           // best first
    std::vector<std::string> others;  // written by this run, not among the best
    std::vector<std::string> chosen;  // that a user chose to resume from
  };

  CheckpointManager(int64_t save_top_k, Monitor monitor)
      : save_top_k_(save_top_k), monitor_(std::move(monitor)) {}

  // Whether a checkpoint with this score would be among the best. NaN is the worst score.
  bool is_among_best(double score) const;

  // Sets the score of the next checkpoint, which decides whether it is among the best.
  void propose(double score) { proposed_ = score; }
  bool has_proposal() const { return proposal().has_value(); }
  // Called when the next checkpoint, with or without a score, begins to be written.
  void begin_writing();
  // Called when the checkpoint is written. Returns the names of the checkpoints to remove.
  std::vector<std::string> finish_writing(const std::string& name);

  // Names, empty if there is none.
  std::string best() const { return best_.empty() ? "" : best_.front().name; }
  const std::string& latest() const { return latest_; }
  const std::vector<Kept>& all_best() const { return best_; }

  State state() const;
  // Resumes from the checkpoint `name` with the state saved in it. `present` lists the existing
  // folders. With `may_remove`, the checkpoint is removed when the next one is written, unless it
  // is among the best; leftovers of a killed run are removed too.
  void resume(const std::string& name, State state, const std::set<std::string>& present,
              bool may_remove);

 private:
  // Includes the checkpoint that is being written, if any.
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
  std::set<std::string> chosen_;  // that a user chose to resume from; never removed
  std::optional<double> proposed_;
  std::optional<std::vector<Kept>> being_written_;  // the value of best_ once it is written
};

}  // namespace troika::train
