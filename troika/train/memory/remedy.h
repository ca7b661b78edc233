// Finds changes by which a run fits into memory, using predictions.
#pragma once

#include <string>
#include <vector>

#include "troika/train/memory/prediction.h"

namespace troika::train {

// Returns text that says how the run fits into `bytes` bytes of each rank's process beyond its
// libraries. Suggests, on the same number of ranks, the fastest fitting choice of precision,
// recomputation and strategy, and the largest fitting batch; if neither exists, both together;
// otherwise more machines with the same number of ranks each. If nothing helps, says so and names
// the parts that do not fit in the choice with the least memory.
//
// `options` are the predictor's. `configured` is the choice that does not fit. `choices` are those
// of predict_choices(), and include `configured`'s number of ranks.
std::string remedy(MemoryPredictor& predictor, const TrainOptions& options,
                   const MemoryChoice& configured, const std::vector<MemoryPrediction>& choices,
                   double bytes);

}  // namespace troika::train
