// The node of each rank, and whether a node has fewer processors than ranks.
#pragma once

#include <string>
#include <vector>

#include "troika/base/processors.h"

namespace troika::comm {

// The facts that a rank reports about itself at the rendezvous.
struct RankPlace {
  std::string node;       // equal on ranks that share a machine's memory
  Processors processors;  // on which the rank may run; empty if unknown
};

struct NodeMap {
  std::vector<int> nodes;  // of each rank, numbered from 0 by first appearance
  std::vector<bool>
      crowded;  // by node: its ranks outnumber the processors that any of them may use

  // One line for the rendezvous, and its inverse.
  std::string text() const;
  static NodeMap from_text(const std::string& text);
};

// `places` are those of all ranks, in rank order. A node with a rank whose processors are unknown
// is not crowded.
NodeMap map_nodes(const std::vector<RankPlace>& places);

}  // namespace troika::comm
