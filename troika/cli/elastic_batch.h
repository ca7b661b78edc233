// Checks of the options of a training whose machines may come and go.
#pragma once

#include "troika/cluster/environment.h"
#include "troika/train/options/options.h"

namespace troika::cli {

// Under `troika launch --nnodes MIN:MAX` (its TROIKA_NNODES) the global batch must be the same
// whatever the number of ranks, and divide among them, or the run would change its course or end
// when a machine is lost. Throws Error(train, usage) saying which batch would do.
void require_elastic_batch(const train::TrainOptions& options,
                           const cluster::Environment& environment,
                           const cluster::Variables& variables = cluster::process_variable);

}  // namespace troika::cli
