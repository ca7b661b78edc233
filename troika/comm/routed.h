// Ranks on several nodes: messages inside a node go one way, those between nodes another.
#pragma once

#include <memory>

#include "troika/comm/group_impl.h"

namespace troika::comm {

// `near` holds the ranks of this node, in their order; `far` holds all ranks, and names the nodes.
std::shared_ptr<GroupImpl> make_routed(std::shared_ptr<GroupImpl> near,
                                       std::shared_ptr<GroupImpl> far);

}  // namespace troika::comm
