// The places at which a model, a graph of blocks, can be cut into pipeline stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "troika/layout/profile.h"

namespace troika::plan {

// A set of blocks that has, with each block, all blocks that it reads from. A stage of a pipeline
// is what one cut has beyond another one that it contains.
struct GraphCut {
  std::vector<uint64_t> members = {};  // one bit for each block of the profile
  size_t count = 0;                    // of blocks
  // Sums over the members.
  double seconds = 0;
  double activation_bytes = 0;
  double parameter_bytes = 0;
  // The outputs that PipeDream's optimizer counts as needed after the cut: those of the members
  // that no member reads, and of the members with a reader that is neither one of these nor before
  // all of them.
  double crossing_bytes = 0;

  bool has(size_t block) const { return (members[block / 64] >> (block % 64) & 1) != 0; }
  // Whether all members of `other` are members.
  bool contains(const GraphCut& other) const;
};

struct GraphCuts {
  // A cut comes after all cuts that it contains. The last one has all blocks.
  std::vector<GraphCut> cuts = {};
  // Whether `cuts` has all cuts. Otherwise it has some prefixes of a few orders of the blocks.
  bool is_complete = true;
};

// Returns the cuts that PipeDream's optimizer considers, or some of them if there are more than
// `most`. Blocks whose `layer` begins with Input and that read nothing, and then blocks whose
// `layer` begins with __getitem__ and that nobody reads, are left out. The cuts grow from the first
// block that reads nothing; blocks that no path connects with it are left out, too. `some` is the
// number of cuts to return if there are more than `most`. Throws Error(usage) if no block is left.
GraphCuts find_cuts(const layout::Profile& profile, size_t most, size_t some);

}  // namespace troika::plan
