// The cuts of a model, as a graph of blocks, into pipeline stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "troika/layout/profile.h"

namespace troika::plan {

// A set of blocks that contains all inputs of its blocks. A pipeline stage has the blocks of one
// cut that are not in an earlier cut.
struct GraphCut {
  std::vector<uint64_t> members = {};  // one bit for each block of the profile
  size_t count = 0;                    // of blocks
  // Sums over the members.
  double seconds = 0;
  double activation_bytes = 0;
  double parameter_bytes = 0;
  // The bytes of the outputs that PipeDream's optimizer counts as sent across the cut. These are
  // the outputs of the members that no member reads (the ends), and the outputs of an end's
  // ancestors that have a reader which is neither this end nor its ancestor.
  double crossing_bytes = 0;

  bool has(size_t block) const { return (members[block / 64] >> (block % 64) & 1) != 0; }
  // Whether all members of `other` are members of this cut.
  bool contains(const GraphCut& other) const;
};

struct GraphCuts {
  // A cut comes after all cuts that it contains. The last one has all blocks.
  std::vector<GraphCut> cuts = {};
  // Whether `cuts` has all cuts. If not, it has some of the prefixes of a few topological orders.
  bool is_complete = true;
};

// Returns the cuts that PipeDream's optimizer considers, or some of them if there are more than
// `most`. Leaves out blocks without inputs whose `layer` begins with Input, and then blocks without
// readers whose `layer` begins with __getitem__. Every cut contains the first block without inputs.
// Blocks that are not connected with this block are left out as well. `some` is the number of cuts
// to return if there are more than `most`. Throws Error(usage) if no block is left.
GraphCuts find_cuts(const layout::Profile& profile, size_t most, size_t some);

}  // namespace troika::plan
