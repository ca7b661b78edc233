#include <algorithm>
#include <array>

#include "troika/comm/algorithms/all_reduce.h"

namespace troika::comm {

namespace {

constexpr int kNobody = -1;

struct Node {
  int parent = kNobody;
  std::array<int, 2> children = {kNobody, kNobody};
};

// Place `p` of 0..n-1 in the in-order binary tree whose leaves are the places 0, 2, 4, ...: the
// height of a place is its number of trailing one-bits. The parent is p + 2^height or p - 2^height,
// as the next higher bit says. Places beyond n-1 are replaced by their own parent.
int height_of(int p) {
  int height = 0;
  while (p & (1 << height)) ++height;
  return height;
}

int root_of(int n) {
  int root = 0;
  while ((root << 1 | 1) < n) root = root << 1 | 1;
  return root;
}

int parent_of(int p, int n) {
  if (p == root_of(n)) return kNobody;
  do {
    const int height = height_of(p);
    // The next higher bit says on which side of its parent a place is.
    p = p & (1 << (height + 1)) ? p - (1 << height) : p + (1 << height);
  } while (p >= n);
  return p;
}

// Returns the node of member `me` if member m is at place (m + shift) mod n.
Node node_of(int me, int n, int shift) {
  const auto place = [&](int member) { return modulo(member + shift, n); };
  const auto member = [&](int p) { return p == kNobody ? kNobody : modulo(p - shift, n); };
  Node node{.parent = member(parent_of(place(me), n))};
  size_t found = 0;
  for (int other = 0; other < n && found < 2; ++other) {
    if (parent_of(place(other), n) == place(me)) node.children[found++] = other;
  }
  return node;
}

// One half of the data on one tree, with its own message lane.
struct Lane {
  Lane(const RankSubset& all, int shift, ByteSpan half, const Elements& elements)
      : subset(all),
        node(node_of(all.me, all.size(), shift)),
        segments(
            even_blocks(half, elements.size(), static_cast<int>(half.bytes / kSegmentBytes + 1))),
        collector(subset, {elements.type, elements.op}),
        up(subset),
        down(subset) {
    subset.lane = static_cast<uint32_t>(shift);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Reduces the segments from the children and sends the result to the parent. The root starts
  // sending the result down.
  void raise(ByteSpan segment, const Elements& elements) {
    std::vector<int> children;
    for (const int child : node.children) {
      if (child != kNobody) children.push_back(child);
    }
    std::ranges::sort(children);
    collector.start(children, segment);
    collector.finish();
    if (node.parent != kNobody) return up.send(node.parent, segment);
    elements.finish(segment);
    lower(segment);
  }
  void lower(ByteSpan segment) {
    for (const int child : node.children) {
      if (child != kNobody) down.send(child, segment);
    }
  }
  void take_from_above(ByteSpan segment) {
    if (node.parent == kNobody) return;
    Transfers arriving(subset);
    arriving.receive(node.parent, segment);
    arriving.wait();
    lower(segment);
  }

  RankSubset subset;
  const Node node;
  const std::vector<ByteSpan> segments;
  Collector collector;
  Transfers up;
  Transfers down;
};

}  // namespace

void double_tree_all_reduce(const RankSubset& subset, ByteSpan whole, const Elements& average) {
  const int n = subset.size();
  if (n == 1) return;
  const Elements elements = average.divided_ahead(whole);
  const auto halves = even_blocks(whole, elements.size(), 2);
  // With a shift by one, the leaves of one tree are the interior nodes of the other.
  Lane first(subset, 0, halves[0], elements);
  Lane second(subset, 1, halves[1], elements);
  const size_t rounds = std::max(first.segments.size(), second.segments.size());
  const auto each = [&](auto&& step) {
    for (size_t s = 0; s < rounds; ++s) {
      for (Lane* lane : {&first, &second}) {
        if (s < lane->segments.size()) step(*lane, lane->segments[s]);
      }
    }
  };
  each([&](Lane& lane, ByteSpan segment) { lane.raise(segment, elements); });
  // The data sent up is about to be overwritten by results from above.
  first.up.wait();
  second.up.wait();
  each([](Lane& lane, ByteSpan segment) { lane.take_from_above(segment); });
  first.down.wait();
  second.down.wait();
}

}  // namespace troika::comm
