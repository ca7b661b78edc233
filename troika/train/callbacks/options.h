// Options of the callbacks that have sections of their own.
#pragma once

#include "troika/base/config.h"
#include "troika/train/options.h"

namespace troika::train {

// A part of make_table(): sections [checkpoint], [early_stopping], [timer], [ema], [swa],
// [statistics] and [throughput].
void add_callbacks(config::Table& table, TrainOptions& options);

}  // namespace troika::train
