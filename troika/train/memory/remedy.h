// Finds what would make a run fit into memory, by predicting it.
#pragma once

#include <string>
#include <vector>

#include "troika/train/memory/prediction.h"

namespace troika::train {

// Says what makes a run fit into so many bytes of each rank's process beside its libraries, where
// what is configured does not: the fastest choice of precision, recomputation and strategy, and the
// largest batch, on as many ranks; else both together; else more machines with as many ranks each.
// Where nothing does, says so, and which parts do not fit with the choice that takes least.
//
// `options` are the predictor's. `configured` is the choice that does not fit, `choices` are those
// of predict_choices(), its own number of ranks among theirs.
std::string remedy(MemoryPredictor& predictor, const TrainOptions& options,
                   const MemoryChoice& configured, const std::vector<MemoryPrediction>& choices,
                   double bytes);

}  // namespace troika::train
