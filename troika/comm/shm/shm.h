// Back end `shm`: ranks of one machine, through shared memory.
#pragma once

#include <memory>

#include "troika/comm/backend.h"

namespace troika::comm::shm {

// The group of the meeting's ranks that are on this rank's node, called by all ranks of the world;
// or nothing, on every rank, when some node's ranks cannot reach each other's memory.
std::shared_ptr<GroupImpl> make_if_possible(const Meeting& meeting, Deadline deadline);

}  // namespace troika::comm::shm
