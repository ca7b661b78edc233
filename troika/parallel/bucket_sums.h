// The interface of what averages buckets instead of the group's all-reduce.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "troika/parallel/buckets.h"
#include "troika/state/state_dict.h"

namespace troika::parallel {

// All ranks make the same calls, besides finish_any(). At most one thread at a time calls the
// functions; only finish() and finish_any() block.
class BucketSums {
 public:
  BucketSums() = default;
  virtual ~BucketSums() = default;
  BucketSums(const BucketSums&) = delete;
  BucketSums& operator=(const BucketSums&) = delete;

  // Takes note of the buckets of the steps that follow. Called outside of steps; the buckets
  // outlive their steps. Throws Error(usage) for gradients that cannot be averaged.
  virtual void lay_out(const std::vector<Bucket>& buckets) = 0;
  // Tells how far the step whose buckets start next moves parameters per unit of their values (the
  // learning rate, divided by the loss scale), the same on all ranks, for values that are kept for
  // later steps. Called outside of steps, or never. Does not wait for means.
  virtual void expect_rate(double /*rate*/) {}
  // Starts to replace the bucket's values by their mean over the ranks, with the same bits on all
  // ranks. Ranks may start buckets in different orders.
  virtual void start(const Bucket& bucket) = 0;
  // Blocks until all buckets that were started are averaged.
  virtual void finish() = 0;
  // Blocks until one of these buckets, at least one and all of them started, is averaged, and
  // returns its position in the list: the first one if several are.
  virtual size_t finish_any(const std::vector<size_t>& buckets) = 0;
  // Lets go of buckets whose averages are not finished. Does nothing between steps.
  virtual void drop() = 0;
  // Returns all that the next step's averages depend on besides gradients, for a checkpoint.
  // Called between steps, also by a rank alone. A rank that lacks a tensor loads that of rank 0.
  virtual state::StateDict state() = 0;
  // Replaces it, for the buckets that were laid out. Called by all ranks between steps. Throws
  // Error(usage) for a tensor that does not belong.
  virtual void load_state(const state::StateDict& state) = 0;
};

// Precedes the names of BucketSums::state() in the state of an Exchange.
inline constexpr std::string_view kStateOfSums = "sums.";

// Returns the state of an Exchange without that of BucketSums, which averages of other kinds do not
// depend on. Warns if there is one.
state::StateDict without_sums(const state::StateDict& state);

}  // namespace troika::parallel
