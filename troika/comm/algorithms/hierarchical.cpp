#include "troika/comm/algorithms/hierarchical.h"

#include <ATen/ATen.h>

#include "troika/comm/algorithms/all_reduce.h"
#include "troika/comm/algorithms/basic.h"

namespace troika::comm {

namespace {

// All members' blocks, in the memory from which the node's ranks communicate fastest, grouped by
// the place on this node whose member is responsible for them. The member at place p is responsible
// for the members at place p of their nodes and, on larger nodes, for those at p + size, p + 2
// size, and so on.
class BlocksByPlace {
 public:
  BlocksByPlace(const RankSubset& subset, const Nodes& nodes, const std::vector<ByteSpan>& blocks)
      : members_(nodes.my_node().size()), packed_(blocks.size()) {
    size_t bytes = 0;
    for (const ByteSpan block : blocks) bytes += block.bytes;
    memory_ = subset.channel.impl().allocate(static_cast<int64_t>(bytes), at::kByte);
    for (int member = 0; member < subset.size(); ++member) {
      members_[nodes.place_of(member) % members_.size()].push_back(member);
    }
    auto* at = static_cast<char*>(memory_.data_ptr());
    for (const auto& of_place : members_) {
      char* const begin = at;
      for (const int member : of_place) {
        const size_t size = blocks[static_cast<size_t>(member)].bytes;
        packed_[static_cast<size_t>(member)] = {at, size};
        at += size;
      }
      places_.push_back({begin, static_cast<size_t>(at - begin)});
    }
  }

  ByteSpan of_member(int member) const { return packed_[static_cast<size_t>(member)]; }
  // One span per place.
  const std::vector<ByteSpan>& places() const { return places_; }
  const std::vector<int>& members_of(size_t place) const { return members_[place]; }

 private:
  at::Tensor memory_;
  std::vector<std::vector<int>> members_;  // by place
  std::vector<ByteSpan> packed_;           // by member
  std::vector<ByteSpan> places_;
};

// Returns the member of `node` that is responsible for this member's block.
int responsible(const Nodes& nodes, size_t node, int member) {
  const auto& members = nodes.members()[node];
  return members[nodes.place_of(member) % members.size()];
}

}  // namespace

void hierarchical_all_reduce(const RankSubset& subset, const Nodes& nodes, ByteSpan whole,
                             const Elements& elements, Algorithm between) {
  const InsideNode inside(subset, nodes);
  // Members beyond the size of the smallest node have empty blocks.
  auto blocks = even_blocks(whole, elements.size(), static_cast<int>(nodes.smallest()));
  blocks.resize(nodes.my_node().size(), {whole.data + whole.bytes, 0});
  inside.reduce_scatter(blocks, elements.first_level());
  const size_t place = nodes.place_of(subset.me);
  // If `whole` has few elements, some blocks are empty, and nodes exchange nothing for them.
  if (blocks[place].bytes > 0) {
    const RankSubset across = subset.select(nodes.across(place));
    if (between == Algorithm::recursive_doubling) {
      recursive_doubling_all_reduce(across, blocks[place], elements.last_level());
    } else if (between == Algorithm::rabenseifner) {
      rabenseifner_all_reduce(across, blocks[place], elements.last_level());
    } else {
      ring_all_reduce(across, blocks[place], elements.last_level());
    }
  }
  inside.all_gather(blocks);
}

void hierarchical_reduce_scatter(const RankSubset& subset, const Nodes& nodes,
                                 const std::vector<ByteSpan>& blocks, ByteSpan own,
                                 const Elements& elements) {
  const BlocksByPlace by_place(subset, nodes, blocks);
  for (int member = 0; member < subset.size(); ++member) {
    copy(blocks[static_cast<size_t>(member)], by_place.of_member(member));
  }
  InsideNode(subset, nodes).reduce_scatter(by_place.places(), elements.first_level());

  std::vector<char> arrived(own.bytes * (nodes.count() - 1));
  std::vector<const void*> terms;
  Transfers both(subset);
  char* at = arrived.data();
  for (size_t node = 0; node < nodes.count(); ++node) {
    if (node == nodes.mine()) {
      terms.push_back(by_place.of_member(subset.me).data);
      continue;
    }
    both.receive(responsible(nodes, node, subset.me), {at, own.bytes});
    terms.push_back(at);
    at += own.bytes;
  }
  for (const int member : by_place.members_of(nodes.place_of(subset.me))) {
    if (member != subset.me) both.send(member, by_place.of_member(member));
  }
  both.wait();
  const Elements last = elements.last_level();
  void* into = own.data;
  reduce({&into, 1}, terms, last.count(own), last.type, last.op, last.divisor);
}

void hierarchical_all_gather(const RankSubset& subset, const Nodes& nodes,
                             const std::vector<ByteSpan>& blocks) {
  const BlocksByPlace by_place(subset, nodes, blocks);
  const ByteSpan own = by_place.of_member(subset.me);
  copy(blocks[static_cast<size_t>(subset.me)], own);
  Transfers both(subset);
  for (const int member : by_place.members_of(nodes.place_of(subset.me))) {
    if (member != subset.me) both.receive(member, by_place.of_member(member));
  }
  for (size_t node = 0; node < nodes.count(); ++node) {
    if (node != nodes.mine()) both.send(responsible(nodes, node, subset.me), own);
  }
  both.wait();
  InsideNode(subset, nodes).all_gather(by_place.places());
  for (int member = 0; member < subset.size(); ++member) {
    if (member != subset.me) {
      copy(by_place.of_member(member), blocks[static_cast<size_t>(member)]);
    }
  }
}

void hierarchical_broadcast(const RankSubset& subset, const Nodes& nodes, ByteSpan whole,
                            int root) {
  // The root represents its node, and the first member every other node.
  const size_t root_node = nodes.node_of(root);
  std::vector<int> heads;
  for (const auto& node : nodes.members()) heads.push_back(node.front());
  heads[root_node] = root;
  const int head = heads[nodes.mine()];
  if (subset.me == head) tree_broadcast(subset.select(heads), whole, static_cast<int>(root_node));
  InsideNode(subset, nodes).broadcast(whole, static_cast<int>(nodes.place_of(head)));
}

bool hierarchical_barrier(const RankSubset& subset, const Nodes& nodes) {
  const InsideNode inside(subset, nodes);
  if (!inside.barrier()) return false;
  if (nodes.place_of(subset.me) == 0) dissemination_barrier(subset.select(nodes.across(0)));
  return inside.barrier();
}

}  // namespace troika::comm
