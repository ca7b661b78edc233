// Groups over several nodes: messages inside a node use one back end, messages between nodes
// another.
#pragma once

#include <memory>

#include "troika/comm/messages/group_impl.h"

namespace troika::comm {

// Combines two groups. `near` holds the ranks of this node, in their order; its try_native() must
// support the calls of GroupImpl::run_within_node, and only the routed group may make calls on it.
// `far` holds all ranks, and supplies the node numbers. A part that is inside one node becomes a
// part of `near`.
std::shared_ptr<GroupImpl> make_routed(std::shared_ptr<GroupImpl> near,
                                       std::shared_ptr<GroupImpl> far);

}  // namespace troika::comm
