// Ranks on several nodes: messages inside a node go one way, those between nodes another.
#pragma once

#include <memory>

#include "troika/comm/group_impl.h"

namespace troika::comm {

// `near` holds the ranks of this node, in their order, and its shortcut() must know the calls of
// GroupImpl::run_within_node; nobody else may make calls on it. `far` holds all ranks, and names
// the nodes. A part that lies inside one node is a part of `near`.
std::shared_ptr<GroupImpl> make_routed(std::shared_ptr<GroupImpl> near,
                                       std::shared_ptr<GroupImpl> far);

}  // namespace troika::comm
