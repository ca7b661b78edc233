// The interface of what averages buckets instead of the group's all-reduce.
#pragma once

#include <vector>

#include "troika/parallel/buckets.h"

namespace troika::parallel {

// All ranks make the same calls. At most one thread at a time calls the functions; only finish()
// blocks.
class BucketSums {
 public:
  BucketSums() = default;
  virtual ~BucketSums() = default;
  BucketSums(const BucketSums&) = delete;
  BucketSums& operator=(const BucketSums&) = delete;

  // Takes note of the buckets of the steps that follow. Called outside of steps; the buckets
  // outlive their steps. Throws Error(usage) for gradients that cannot be averaged.
  virtual void lay_out(const std::vector<Bucket>& buckets) = 0;
  // Starts to replace the bucket's values by their mean over the ranks, with the same bits on all
  // ranks. Ranks may start buckets in different orders.
  virtual void start(const Bucket& bucket) = 0;
  // Blocks until all buckets that were started are averaged.
  virtual void finish() = 0;
  // Lets go of buckets whose averages are not finished. Does nothing between steps.
  virtual void drop() = 0;
};

}  // namespace troika::parallel
