// The phases of single rounds and of flat algorithms, of which collectives are made.
#pragma once

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "troika/plan/simulation/collectives.h"

namespace troika::plan {

using Phases = std::vector<CollectivePhase>;

// The messages of a phase.
class Messages {
 public:
  explicit Messages(const ClusterLinks& links) : links_(links) {}

  void add(int from, int to, double bytes) {
    const auto path = links_.path(from, to);
    latency_ = std::max(latency_, path.latency);
    largest_ = std::max(largest_, bytes);
    for (const auto& use : path.uses) bytes_[use.link] += bytes * use.weight;
  }

  // `rounds` is the number of messages that follow each other, `reduced` is the time of the
  // reduction in seconds.
  CollectivePhase phase(double rounds, double reduced) const {
    CollectivePhase phase{.seconds = rounds * latency_ + reduced, .bytes = largest_};
    if (largest_ == 0) return phase;
    for (const auto& [link, bytes] : bytes_) phase.uses.push_back({link, bytes / largest_});
    return phase;
  }

 private:
  const ClusterLinks& links_;
  double latency_ = 0;
  double largest_ = 0;
  std::map<int, double> bytes_;  // by link
};

// The phases of collectives among `ranks`.
class Rounds {
 public:
  Rounds(const std::vector<int>& ranks, const ClusterLinks& links, double reduce_per_byte)
      : ranks_(ranks), links_(links), reduce_per_byte_(reduce_per_byte) {}

  // `turns` is 2 for an all-reduce, and 1 for a reduce-scatter or an all-gather.
  Phases ring(double bytes, int turns, bool reduces) const;

  // Each rank sends so many bytes to the next one, or in equal parts to all others.
  Phases shift(double bytes) const;
  Phases all_to_all(double bytes) const;

  // Pushes and means of different partitions are under way together.
  Phases summation(const Collective& collective) const;

  // The first rank gets the sum of all, or gives the others the result.
  CollectivePhase to_first(double bytes, bool is_before) const;

  Phases recursive_doubling(double bytes) const;

  // A reduce-scatter by halving, from the largest distance to the smallest, then an all-gather by
  // doubling.
  Phases rabenseifner(double bytes) const;

  // Each of two binary trees carries half of the data to its root and back.
  Phases double_tree(double bytes) const;

 private:
  int size() const { return static_cast<int>(ranks_.size()); }
  int at(int member) const { return ranks_[static_cast<size_t>(member)]; }
  // The largest power of two that is at most the number of members, and whether there are more
  // members.
  int power() const { return static_cast<int>(std::bit_floor(static_cast<unsigned>(size()))); }
  bool has_fold() const { return power() < size(); }
  // Returns the member at a position of the rounds. If there are r members more than `power()`,
  // only the even members of the first 2r take part.
  int member_at(int position) const;

  // Before the rounds (`is_before`), each member that does not take part sends its data to its
  // neighbour; after them, it gets the result.
  CollectivePhase fold(double bytes, double reduced, bool is_before) const;
  // Before the rounds, each member that does not take part exchanges bytes with its neighbour, and
  // both reduce what they get.
  CollectivePhase exchange_before(double bytes) const;

  CollectivePhase exchange(int distance, double bytes, double reduced) const;

  // Returns the parent of a place in the in-order binary tree whose leaves are the even places; -1
  // for the root.
  int parent_of(int place) const;

  const std::vector<int>& ranks_;
  const ClusterLinks& links_;
  const double reduce_per_byte_;
};

}  // namespace troika::plan
