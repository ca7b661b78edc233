// A parameter server whose scheduler and servers are processes of their own, which `troika launch
// --servers S --workers W` or a heterogeneous job of Slurm has started beside the ranks.
#pragma once

#include <memory>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/server/world.h"

namespace troika::parallel {

// Returns the role of this process: `alone` unless it was started as one of them. Throws
// Error(usage) that names the variable for an environment that is incomplete.
server::WorldOptions launched_role();

// Makes the part of this rank, which is worker `rank`, in the world that was launched. Workers join
// in the order of ranks, so the servers add gradients in this order. Rank 0 brings the tables and
// the number of ranges of the scheduler of `parts`. Without tables, workers join in any order, and
// world->connected_endpoint() is where they meet the servers. Called by all ranks. Blocks for the
// group's timeout at most. Throws Error(parallel, usage) if the processes are not those of
// `servers` or of the group, and the errors of server::World.
std::unique_ptr<server::World> launched_world(const comm::Group& group,
                                              const server::WorldOptions& role,
                                              const layout::ServerExchange& servers,
                                              server::WorldParts parts);

// Runs the scheduler or the server that this process is, for ranks with this exchange; for
// Sandblaster, the scheduler's process also coordinates. Blocks
// until all workers have ended. After SIGTERM, SIGINT or SIGUSR1, which ask the ranks to save, it
// goes on until no worker is connected to the scheduler. Throws Error(server, timeout) if no worker
// joins within an hour, and the errors of server::World.
void serve(const server::WorldOptions& role, const layout::GradientExchange& exchange);

}  // namespace troika::parallel
