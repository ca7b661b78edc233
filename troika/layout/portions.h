// The rule by which workers compute portions of a batch, without messages (Dean et al., "Large
// Scale Distributed Deep Networks", NIPS 2012, section 4.2).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace troika::layout {

// Each portion is committed once: by the first worker that has a result for it. Near the end, when
// all portions are being computed, idle workers compute them a second time. Workers are known by
// their numbers. Not thread-safe.
class Portions {
 public:
  // `backups`: how many more workers at most compute a portion that one computes already.
  Portions(uint64_t count, int backups);

  // Begins a pass: no portion is committed.
  void begin();

  // Returns a portion for an idle worker to compute, which then counts as busy with it; none if
  // there is none for it now. It is the one after the worker's last one if nobody computes that.
  std::optional<uint64_t> next(uint64_t worker);
  // The worker has a result of its portion, whose loss is `loss`, and is idle. Returns whether the
  // result counts; it is then part of the worker's step `step`.
  bool commit(uint64_t worker, int64_t step, double loss);
  // The worker is idle, and has no result.
  void release(uint64_t worker);
  // The worker was lost after it had finished step `finished`: the portions of its later steps are
  // not committed any more. Returns how many they were.
  uint64_t lose(uint64_t worker, int64_t finished);

  bool is_complete() const { return committed_ == losses_.size(); }
  // The sum of the portions' losses, in their order.
  double loss() const;
  uint64_t backups_begun() const { return backups_begun_; }

 private:
  struct Committer {
    uint64_t worker = 0;
    int64_t step = -1;
  };

  const int backups_;
  std::vector<std::optional<Committer>> committers_;  // by portion
  std::vector<double> losses_;                        // by portion
  uint64_t committed_ = 0;
  std::set<uint64_t> open_;                           // neither committed nor being computed
  std::map<uint64_t, uint64_t> busy_;                 // the portion that a worker computes
  std::map<uint64_t, std::set<uint64_t>> computing_;  // the workers of a portion not committed
  std::map<uint64_t, uint64_t> last_;                 // each worker's last portion
  uint64_t backups_begun_ = 0;
};

}  // namespace troika::layout
