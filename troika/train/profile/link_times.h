// Measures the links between ranks by the all-reduces that training makes.
#pragma once

#include <cstdint>
#include <functional>

#include "troika/comm/group.h"
#include "troika/layout/profile.h"

namespace troika::train {

constexpr int64_t kLeastGradients = int64_t{1} << 18, kMostGradients = int64_t{1} << 24;

struct MeasuredLinks {
  layout::MeasuredLink inside = {};   // between ranks of a node; unknown if no node has two
  layout::MeasuredLink between = {};  // between nodes; unknown on one node
};

// Times all-reduces of gradients between the ranks of each node, and then between nodes, with all
// ranks busy. Returns the links with which a ring takes the same times: 2 (n - 1) (latency + bytes
// / n / bandwidth) on n ranks. The bandwidth between nodes is that of a whole node. The same on all
// ranks, from the slowest rank. `device` is where gradients are. `gradients` is their number in the
// model, in floats: memory that is not in a processor's caches moves several times more slowly, so
// the timed tensors have as many elements, but at least kLeastGradients and at most kMostGradients.
// Collective; blocks for about `seconds` at each level.
MeasuredLinks measure_link_times(const comm::Group& group, at::Device device, int64_t gradients,
                                 double seconds);

// Times all-gathers of as many elements as the model has gradients, with all ranks busy and shards
// that no cache holds. Returns layout::Profile::gather_bytes_per_second for these links; 0 on one
// rank. The same on all ranks. Collective; blocks.
double measure_gathers(const comm::Group& group, at::Device device, int64_t gradients,
                       const MeasuredLinks& links);

// Runs `compute` alone, all-reduces of gradients alone, and both at the same time, in turns.
// Returns the share of the shorter one that the longer one hides (layout::PassesInStep::overlap); 1
// on one rank. The same on all ranks. Collective; blocks for about `seconds`.
double measure_overlap(const comm::Group& group, at::Device device, int64_t gradients,
                       double seconds, const std::function<void()>& compute);

}  // namespace troika::train
