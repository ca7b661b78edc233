// A parameter server in the processes of a group.
#pragma once

#include <memory>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/server/world.h"

namespace troika::parallel {

// Makes this rank's part of a parameter server: the scheduler is in the process of rank 0, server i
// in that of rank i % ranks, and each rank has a worker. Workers join in the order of ranks, so the
// servers add gradients in this order. Connections need the run's secret (docs/security.md).
// Called by all ranks. Blocks for the group's timeout at most. Throws Error(usage) if rank 0's
// machine has no address for the others, and the errors of server::World.
std::unique_ptr<server::World> embedded_world(const comm::Group& group,
                                              const layout::ServerExchange& servers,
                                              server::SchedulerOptions scheduler);

}  // namespace troika::parallel
