// The strategies that use servers: their part of resolve_plan().
#pragma once

#include "troika/layout/cluster.h"
#include "troika/layout/plan.h"
#include "troika/train/options/options.h"

namespace troika::train {

void choose_servers(layout::Plan& plan, const TrainOptions& options, const layout::Cluster&);
// The consistency of [server] is that of parameter_server; its default counts as not set. Throws
// Error(usage) for values that this strategy does not have.
void choose_downpour(layout::Plan& plan, const TrainOptions& options,
                     const layout::Cluster& cluster);
// [server] has no consistency and no filters with this strategy. Throws Error(usage) for values
// that are set.
void choose_sandblaster(layout::Plan& plan, const TrainOptions& options,
                        const layout::Cluster& cluster);
// Only `servers` and `limit_seconds` of [server] have a meaning. Throws Error(usage) for other
// values that are set.
void choose_byteps(layout::Plan& plan, const TrainOptions& options, const layout::Cluster&);
// Throws Error(usage) where a plan, of a strategy or given as text, has servers and cannot be
// carried out with these options.
void require_servers_fit(const TrainOptions& options, const layout::Plan& plan);

}  // namespace troika::train
