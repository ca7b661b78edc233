// The group that a run's options ask for.
#pragma once

#include "troika/comm/world.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Returns the options for comm::world(): the back end, the time-outs and the algorithm of `comm`,
// and run.folder/flight-records/NAME for flight records, where the launcher has no folder for them.
// A program of one's own makes its group so:
//   comm::world(train::world_options(options))
comm::WorldOptions world_options(const TrainOptions& options);

// Throws Error(usage) where the options ask for another group than this: for trainer.devices or
// trainer.num_nodes that are not those of its ranks, and for values of `comm` that differ from
// their defaults and from what the group was made with. comm.join_timeout_seconds is
// not checked, because the ranks have met by then.
void require_group_of(const TrainOptions& options, const comm::Group& group);

}  // namespace troika::train
