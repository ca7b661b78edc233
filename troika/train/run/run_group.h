// The group that a run's options ask for.
#pragma once

#include "troika/comm/world/world.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Returns the options for comm::world(): back end, timeouts and algorithm from the section `comm`,
// and the folder run.folder/flight-records/NAME for flight records unless the launcher has set one.
// A program makes its group with
//   comm::world(train::world_options(options))
comm::WorldOptions world_options(const TrainOptions& options);

// Throws Error(usage) if the options ask for another group: if trainer.devices or trainer.num_nodes
// do not match its ranks, or if values of `comm` differ both from their defaults and from the
// options the group was made with. comm.join_timeout_seconds is not checked, because the ranks have
// already joined.
void require_group_of(const TrainOptions& options, const comm::Group& group);

}  // namespace troika::train
