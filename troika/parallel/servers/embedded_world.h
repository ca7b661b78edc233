// A parameter server in the processes of a group.
#pragma once

#include <memory>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/server/world.h"

namespace troika::parallel {

// The scheduler's options that a plan states.
server::SchedulerOptions scheduler_options(const layout::ServerExchange& servers);
// The number of ranges of the ring, for `ranks` ranks and tables of `bytes`.
uint32_t ranges_of(const layout::ServerExchange& servers, int ranks, int64_t bytes);
// The time after which a silent process counts as lost.
net::Duration limit_of(const layout::ServerExchange& servers);

// A service for WorldParts: a server::SummationServer.
std::shared_ptr<void> summation_service(net::Endpoint& endpoint);

// Makes this rank's part of a parameter server: the scheduler is in the process of rank 0, with a
// worker beside it if it `has_coordinator`, server i
// in that of rank i % ranks, and each rank has a worker. Workers join in the order of ranks, so the
// servers add gradients in this order. Connections need the run's secret (docs/security.md).
// The scheduler of `parts` has scheduler_options() with tables and ranges.
// Called by all ranks. Blocks for the group's timeout at most. Throws Error(usage) if rank 0's
// machine has no address for the others, and the errors of server::World.
std::unique_ptr<server::World> embedded_world(const comm::Group& group,
                                              const layout::ServerExchange& servers,
                                              server::WorldParts parts,
                                              bool has_coordinator = false);

}  // namespace troika::parallel
