// Back end `shm`: ranks of one machine, over shared memory.
#pragma once

#include <memory>

#include "troika/comm/messages/backend.h"

namespace troika::comm::shm {

// Returns the group of the meeting's ranks on this rank's node; null, on every rank, when the ranks
// of some node cannot access each other's memory. Collective over the world.
std::shared_ptr<GroupImpl> make_if_possible(const Meeting& meeting, Deadline deadline);

}  // namespace troika::comm::shm
