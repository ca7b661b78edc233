// How ranks lie on nodes, and the collectives inside one node.
#pragma once

#include <cstddef>
#include <vector>

#include "troika/comm/algorithms/party.h"

namespace troika::comm {

// The nodes of the party of all ranks of a group. A member's place is its number among the members
// of its node.
class Nodes {
 public:
  // `numbers` has the number of each member's node; `me` is this member.
  Nodes(const std::vector<int>& numbers, int me);

  // The members of each node, in their order, nodes in order of their numbers. No node is empty.
  const std::vector<std::vector<int>>& members() const { return members_; }
  size_t count() const { return members_.size(); }
  size_t mine() const { return node_of(me_); }
  const std::vector<int>& my_node() const { return members_[mine()]; }
  size_t node_of(int member) const { return nodes_[static_cast<size_t>(member)]; }
  size_t place_of(int member) const { return places_[static_cast<size_t>(member)]; }
  // Members of the smallest and the largest node.
  size_t smallest() const;
  size_t largest() const;
  // Whether hierarchical algorithms have phases both inside nodes and between them.
  bool has_levels() const { return count() > 1 && largest() > 1; }

  // The members that stand at this place of each node that has it.
  std::vector<int> across(size_t place) const;

 private:
  const int me_;
  std::vector<std::vector<int>> members_;
  std::vector<size_t> nodes_;   // by member
  std::vector<size_t> places_;  // by member
};

// Collectives among the members of this rank's node: without messages where the back end can (see
// GroupImpl::run_within_node), else over messages. Members are numbered by their places. Blocks lie
// one behind the other, in the order of members.
class InsideNode {
 public:
  InsideNode(const Party& everyone, const Nodes& nodes) : inside_(everyone.part(nodes.my_node())) {}

  int size() const { return inside_.size(); }
  // This member's own block is the result, and the others are used up.
  void reduce_scatter(const std::vector<Span>& blocks, const Elements& elements) const;
  // This member's own block is filled before.
  void all_gather(const std::vector<Span>& blocks) const;
  void broadcast(Span whole, int root) const;
  // Returns false, and does nothing, where it would take messages.
  bool barrier() const;

 private:
  bool run(Call call) const;

  const Party inside_;
};

}  // namespace troika::comm
