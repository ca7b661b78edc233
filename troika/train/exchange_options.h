// Options of how ranks communicate and keep their replicas alike.
#pragma once

#include "troika/base/config.h"
#include "troika/train/options.h"

namespace troika::train {

// A part of make_table(): sections [comm], [ddp], [horovod], [zero], [local_sgd] and [diloco].
void add_exchange(config::Table& table, TrainOptions& options);

}  // namespace troika::train
