// The bytes of a run's batches.
#pragma once

#include <cstdint>

#include "troika/data/dataset.h"
#include "troika/layout/profile.h"
#include "troika/train/engine/placement.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Returns those of a micro-batch of `samples`, all like the one sample of `batch`.
layout::ProfiledBatches batches_of(const TrainOptions& options, const data::Batch& batch,
                                   const Placement& placement, int64_t samples);

}  // namespace troika::train
