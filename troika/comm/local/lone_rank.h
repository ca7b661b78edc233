// One rank of a group whose other ranks do not exist, to follow what a rank does without them.
#pragma once

#include <functional>

#include "troika/comm/call/call.h"
#include "troika/comm/group.h"

namespace troika::comm::local {

// Returns rank 0 of a group of `size` ranks on one node. Its collectives and batches of messages
// move nothing: they end at once, and leave their tensors as they are, so it works on tensors
// without memory, too. `observe` is called for each collective, on the thread that runs it. Other
// messages and parts of the group throw Error(usage).
Group lone_rank(int size, std::function<void(const Call&)> observe);

}  // namespace troika::comm::local
