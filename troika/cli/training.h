// The work of `troika train` and `troika swarm`.
#pragma once

#include <optional>

#include "troika/cli/automatic_arguments.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/train/options/options.h"

namespace troika::cli {

// Trains as one process of the run. `find`: with --plan auto. Returns the exit code.
int train_here(train::TrainOptions options, const cluster::Environment& environment,
               const std::optional<AutomaticArguments>& find = {});

}  // namespace troika::cli
