// The run of one replica that trains by itself, for strategies downpour and sandblaster.
#pragma once

#include <filesystem>

#include "troika/comm/group.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Whether each rank of the group trains a replica by itself, in a run of its own. False for options
// that resolve_plan() refuses.
bool trains_replicas(const TrainOptions& options, const comm::Group& group);

// Returns the options of this rank's run: replica 0 writes to `folder`, the folder of the run, and
// replica i to replicas/i in it. The batch is this replica's share of the global one. All replicas
// resume from the checkpoint of replica 0 that trainer.ckpt_path names. Only replica 0 shows its
// progress. Called by all ranks; blocks. Throws Error(usage) if there is no such checkpoint.
TrainOptions replica_options(const TrainOptions& options, const comm::Group& replicas,
                             const std::filesystem::path& folder);

}  // namespace troika::train
