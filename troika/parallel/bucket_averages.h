// Averages a step's buckets over the ranks while the backward pass fills other buckets.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "troika/comm/group.h"
#include "troika/parallel/buckets.h"
#include "troika/parallel/hook_thread.h"
#include "troika/parallel/reducer_options.h"

namespace troika::parallel {

// Owns the buckets. Every rank launches them in the same order. Not thread-safe; the thread of the
// hook, if any, uses only launched buckets.
class BucketAverages {
 public:
  // Makes buckets of these members. `group`, `options` and `slots` must outlive this object.
  // Without `hook`, buckets are averaged on the group's own thread.
  BucketAverages(const comm::Group& group, const ReducerOptions& options,
                 std::vector<GradientSlot>& slots, const std::vector<std::vector<size_t>>& members,
                 BucketHook hook);
  ~BucketAverages();
  BucketAverages(const BucketAverages&) = delete;
  BucketAverages& operator=(const BucketAverages&) = delete;

  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Makes new buckets with other members. Only for Keeps::all, and between steps.
  void rebuild(const std::vector<std::vector<size_t>>& members);

  void begin_step();
  // The number of buckets whose averages have started in this step.
  size_t launched() const { return launched_; }
  // Opens a closed bucket. At most two are open at a time, except while more are being filled.
  void open(Bucket& bucket);
  // Records in the trace that all gradients of a bucket have arrived.
  void mark_ready(const Bucket& bucket) const;
  // Starts the averages of complete buckets, in order, up to the first incomplete bucket.
  // Multiplies this rank's gradients by `factor` first. The hook is used only if the layout of the
  // buckets is final, because a codec's state depends on the layout.
  void launch_full(double factor, bool is_final_layout);
  // Blocks until all launched averages are done, except those of ReducerOptions::sums if it does
  // not wait for sums.
  void finish(bool waits_for_sums = true);

 private:
  void launch(Bucket& bucket, double factor, bool is_final_layout);
  void average_scattered();
  void average_block(Bucket& bucket);
  void take_result(Bucket& bucket);
  void trace_average(const Bucket& bucket, const char* track, const comm::Work::Times& times) const;

  comm::Group group_;
  const ReducerOptions& options_;
  std::vector<GradientSlot>& slots_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<HookThread> hook_;  // null: plain averages
  size_t launched_ = 0;
  size_t averaged_ = 0;  // launched buckets whose average over `copies` has started
  size_t taken_ = 0;     // launched buckets whose results were taken
};

}  // namespace troika::parallel
