// What a run that goes on does otherwise than the run that saved its checkpoint.
#pragma once

#include <string>
#include <vector>

#include "troika/train/options/options.h"

namespace troika::train {

// A sentence for each difference that changes the steps of the optimizer: the number of samples of
// a step, which follows from data.batch_size and the number of ranks where
// data.global_batch_size is not set, the options `optim.*`, precision, accumulation and clipping.
// Each names both values and the option that keeps the saved one.
std::vector<std::string> changed_course(const TrainOptions& saved, int saved_ranks,
                                        const TrainOptions& own, int own_ranks);

}  // namespace troika::train
