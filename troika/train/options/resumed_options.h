// Compares the options of a resumed run with those of its checkpoint.
#pragma once

#include <string>
#include <vector>

#include "troika/train/options/options.h"

namespace troika::train {

// Returns a sentence for each difference that changes the optimizer's steps: the number of samples
// in a step, the options `optim.*`, precision, accumulation and clipping. The number of samples
// follows from data.batch_size and the number of ranks if data.global_batch_size is not set. Each
// sentence names both values and the option that keeps the saved value.
std::vector<std::string> changed_course(const TrainOptions& saved, int saved_ranks,
                                        const TrainOptions& own, int own_ranks);

}  // namespace troika::train
