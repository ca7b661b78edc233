// The memory of the samples of micro-batches.
#pragma once

#include "troika/layout/profile.h"

namespace troika::plan {

// The micro-batches that a rank has in memory.
struct BatchesAtOnce {
  bool is_pipeline = false;
  double micro_batches = 1;  // of a replica's step
  // Without flushes: the micro-batches of later steps that a stage may begin before a step ends.
  double ahead = 0;
  double together = 1;  // with one stage: the micro-batches whose passes run at the same time
};

// Returns the bytes of a rank's batches. An engine with stages takes, and places, all micro-batches
// of a step at once, while the loader prepares the next ones; with one stage, one after another,
// and the placed batch is part of its pass.
inline double batch_bytes(const BatchesAtOnce& at_once, const layout::ProfiledBatches& batches) {
  const double taken =
      at_once.is_pipeline ? at_once.micro_batches + at_once.ahead : at_once.together;
  return batches.bytes * (taken + batches.prefetched) +
         (at_once.is_pipeline ? batches.placed_bytes * taken : 0);
}

}  // namespace troika::plan
