// Training on parameter servers: what it supports, and its exchange.
#pragma once

#include <memory>
#include <optional>

#include "troika/comm/group.h"
#include "troika/layout/cluster.h"
#include "troika/layout/plan.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/servers/replica_place.h"
#include "troika/server/world.h"
#include "troika/train/options/options.h"
#include "troika/train/task/optimizer_recipe.h"

namespace troika::train {

// Makes the exchange of a plan with servers. Throws Error(usage) that names the option for clipped
// gradients, for optimizers that servers do not have, for a precision with 16-bit parameters or a
// loss scale, for parameters on a GPU, for compressed gradients, for offloaded states, and for
// filters that would change what sequential steps mean or keep gradients out of checkpoints. Called
// by all ranks; blocks.
std::unique_ptr<parallel::Exchange> make_served_exchange(const layout::Plan& plan,
                                                         const TrainOptions& options,
                                                         const OptimizerRecipe& recipe,
                                                         torch::nn::Module& module,
                                                         const parallel::ReplicaPlace& place);

// Returns the options of a process that was started as one of a parameter server: server.servers is
// the number of servers that were launched. Throws Error(usage) for another strategy, and for
// another number of servers.
TrainOptions with_launched_servers(TrainOptions options, const server::WorldOptions& role);

// Returns the options with which `--plan auto` searches: in a process that was launched with
// servers, those of summation servers in place of plain data parallelism. Throws Error(usage) there
// for other strategies without servers, and elsewhere for a described cluster with spare hosts.
TrainOptions with_searched_servers(TrainOptions options,
                                   const std::optional<layout::Cluster>& described);

// Runs the scheduler or the server that this process is (parallel::serve()), of a run with these
// options. Blocks until the run's workers have ended.
void serve_parameters(const TrainOptions& options, const server::WorldOptions& role);

}  // namespace troika::train
