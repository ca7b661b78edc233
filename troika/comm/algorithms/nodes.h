// The placement of ranks on nodes, and the collectives inside one node.
#pragma once

#include <cstddef>
#include <vector>

#include "troika/comm/algorithms/rank_subset.h"

namespace troika::comm {

// The nodes of all ranks of a group. A member's place is its index among the members of its node.
class Nodes {
 public:
  // `numbers` holds each member's node number; `me` is this member.
  Nodes(const std::vector<int>& numbers, int me);

  // The members of each node, ascending; nodes in order of their numbers. No node is empty.
  const std::vector<std::vector<int>>& members() const { return members_; }
  size_t count() const { return members_.size(); }
  size_t mine() const { return node_of(me_); }
  const std::vector<int>& my_node() const { return members_[mine()]; }
  size_t node_of(int member) const { return nodes_[static_cast<size_t>(member)]; }
  size_t place_of(int member) const { return places_[static_cast<size_t>(member)]; }
  // The number of members of the smallest and of the largest node.
  size_t smallest() const;
  size_t largest() const;
  // Whether hierarchical algorithms have phases both inside nodes and between them.
  bool has_levels() const { return count() > 1 && largest() > 1; }

  // The members at this place of each node that has it.
  std::vector<int> across(size_t place) const;

 private:
  const int me_;
  std::vector<std::vector<int>> members_;
  std::vector<size_t> nodes_;   // by member
  std::vector<size_t> places_;  // by member
};

// Collectives among the members of this rank's node: without messages if the back end supports this
// (see GroupImpl::run_within_node), otherwise over messages. Members are numbered by their places.
// Blocks are adjacent in memory, in the order of members.
class InsideNode {
 public:
  InsideNode(const RankSubset& everyone, const Nodes& nodes)
      : inside_(everyone.select(nodes.my_node())) {}

  int size() const { return inside_.size(); }
  // This member's own block becomes the result; the other blocks are overwritten.
  void reduce_scatter(const std::vector<ByteSpan>& blocks, const Elements& elements) const;
  // The caller has filled this member's own block.
  void all_gather(const std::vector<ByteSpan>& blocks) const;
  void broadcast(ByteSpan whole, int root) const;
  // Returns false and does nothing if the barrier would need messages.
  bool barrier() const;

 private:
  bool run(Call call) const;

  const RankSubset inside_;
};

}  // namespace troika::comm
