// Checks the options of a training run with a changing number of machines.
#pragma once

#include "troika/cluster/discovery/environment.h"
#include "troika/train/options/options.h"

namespace troika::cli {

// Under `troika launch --nnodes MIN:MAX` (TROIKA_NNODES), the global batch must be the same for
// each number of machines, and divisible among the replicas on each. Otherwise the loss of a
// machine would change the results of the run or end it. Throws Error(train, usage) with a suitable
// batch.
void require_elastic_batch(const train::TrainOptions& options,
                           const cluster::Environment& environment,
                           const cluster::Variables& variables = cluster::process_variable);

}  // namespace troika::cli
