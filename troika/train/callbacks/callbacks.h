// The callbacks that options ask for.
#pragma once

#include "troika/train/callback.h"

namespace troika::train {

struct TrainOptions;

Callbacks make_callbacks(const TrainOptions& options);

}  // namespace troika::train
