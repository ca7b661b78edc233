// Measures the links between ranks by the all-reduces that training makes.
#pragma once

#include "troika/comm/group.h"
#include "troika/layout/profile.h"

namespace troika::train {

struct MeasuredLinks {
  layout::MeasuredLink inside = {};   // between ranks of a node; unknown if no node has two
  layout::MeasuredLink between = {};  // between nodes; unknown on one node
};

// Times all-reduces of gradients between the ranks of each node, and then between nodes, with all
// ranks busy. Returns the links with which a ring takes the same times: 2 (n - 1) (latency + bytes
// / n / bandwidth) on n ranks. The bandwidth between nodes is that of a whole node. The same on all
// ranks, from the slowest rank. `device` is where gradients are. Collective; blocks for about
// `seconds` at each level.
MeasuredLinks measure_link_times(const comm::Group& group, at::Device device, double seconds);

}  // namespace troika::train
