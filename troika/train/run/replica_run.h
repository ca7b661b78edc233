// The run of one replica that trains by itself, for strategies downpour and sandblaster.
#pragma once

#include <filesystem>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/parallel/servers/replica_place.h"
#include "troika/train/options/options.h"

namespace troika::train {

// The run of one of several replicas, each of which has one rank or a mesh of ranks.
struct ReplicaRun {
  int number = 0;  // of this replica
  int replicas = 1;
  layout::Plan plan;             // with the mesh of this replica
  comm::Group ranks;             // of this replica, which no loss of another one's ranks ends
  parallel::ReplicaPlace place;  // of this rank
};
// Makes it for a plan of all ranks, whose data axis has the replicas. Called by all ranks; blocks.
// Throws the errors of comm::world() for replicas of several ranks.
ReplicaRun make_replica_run(const TrainOptions& options, layout::Plan plan, const comm::Group& all);

// Whether replicas of the group's ranks train by themselves, each in a run of its own. False for
// options that resolve_plan() refuses.
bool trains_replicas(const TrainOptions& options, const comm::Group& group);

// Returns the options of this replica's run: replica 0 writes to `folder`, the folder of the run,
// and replica i to replicas/i in it. The batch is this replica's share of the global one. All
// replicas resume from the checkpoint of replica 0 that trainer.ckpt_path names. Only replica 0
// shows its progress. Called by all ranks; blocks. Throws Error(usage) if there is no such
// checkpoint.
TrainOptions replica_options(const TrainOptions& options, const ReplicaRun& run,
                             const std::filesystem::path& folder);

}  // namespace troika::train
