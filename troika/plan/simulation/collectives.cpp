#include "troika/plan/simulation/collectives.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "troika/base/error.h"
#include "troika/layout/summation.h"

namespace troika::plan {

using layout::Algorithm;

namespace {

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
  Phases ring(double bytes, int turns, bool reduces) const {
    Messages messages(links_);
    const double each = bytes * (size() - 1) / size();
    for (int i = 0; i < size(); ++i) messages.add(at(i), at((i + 1) % size()), turns * each);
    return {messages.phase(turns * (size() - 1), reduces ? each * reduce_per_byte_ : 0)};
  }

  // Pushes and means of different partitions are under way together.
  Phases summation(double bytes, std::vector<int> servers) const {
    const auto shares = layout::split_sums(size(), static_cast<int>(servers.size())).shares();
    servers.insert(servers.end(), ranks_.begin(), ranks_.end());
    Messages messages(links_);
    for (size_t s = 0; s < servers.size(); ++s) {
      for (const int rank : ranks_) {
        messages.add(rank, servers[s], shares[s] * bytes);
        messages.add(servers[s], rank, shares[s] * bytes);
      }
    }
    const double most = std::ranges::max(shares) * bytes;
    return {messages.phase(2, most * (size() - 1) * reduce_per_byte_)};
  }

  // The first rank gets the sum of all, or gives the others the result.
  CollectivePhase to_first(double bytes, bool is_before) const {
    Messages messages(links_);
    for (int i = 1; i < size(); ++i) {
      messages.add(at(is_before ? i : 0), at(is_before ? 0 : i), bytes);
    }
    return messages.phase(1, is_before ? (size() - 1) * bytes * reduce_per_byte_ : 0);
  }

  Phases recursive_doubling(double bytes) const {
    Phases phases;
    if (has_fold()) phases.push_back(fold(bytes, bytes, true));
    for (int distance = 1; distance < power(); distance *= 2) {
      phases.push_back(exchange(distance, bytes, bytes));
    }
    if (has_fold()) phases.push_back(fold(bytes, 0, false));
    return phases;
  }

  // A reduce-scatter by halving, from the largest distance to the smallest, then an all-gather by
  // doubling.
  Phases rabenseifner(double bytes) const {
    Phases phases;
    if (has_fold()) {
      phases.push_back(exchange_before(bytes / 2));
      phases.push_back(fold(bytes / 2, 0, true));
    }
    double half = bytes;
    for (int distance = power() / 2; distance > 0; distance /= 2) {
      half /= 2;
      phases.push_back(exchange(distance, half, half));
    }
    for (int distance = 1; distance < power(); distance *= 2, half *= 2) {
      phases.push_back(exchange(distance, half, 0));
    }
    if (has_fold()) phases.push_back(fold(bytes, 0, false));
    return phases;
  }

  // Each of two binary trees carries half of the data to its root and back.
  Phases double_tree(double bytes) const {
    const double segments = std::ceil(bytes / 2 / static_cast<double>(layout::kSegmentBytes));
    const double rounds = std::bit_width(static_cast<unsigned>(size() - 1)) + segments;
    Messages up(links_), down(links_);
    for (const int shift : {0, 1}) {
      for (int i = 0; i < size(); ++i) {
        const int parent = parent_of((i + shift) % size());
        if (parent < 0) continue;
        const int to = at((parent + size() - shift) % size());
        up.add(at(i), to, bytes / 2);
        down.add(to, at(i), bytes / 2);
      }
    }
    return {up.phase(rounds, bytes * reduce_per_byte_), down.phase(rounds, 0)};
  }

 private:
  int size() const { return static_cast<int>(ranks_.size()); }
  int at(int member) const { return ranks_[static_cast<size_t>(member)]; }
  // The largest power of two that is at most the number of members, and whether there are more
  // members.
  int power() const { return static_cast<int>(std::bit_floor(static_cast<unsigned>(size()))); }
  bool has_fold() const { return power() < size(); }
  // Returns the member at a position of the rounds. If there are r members more than `power()`,
  // only the even members of the first 2r take part.
  int member_at(int position) const {
    const int extra = size() - power();
    return position < extra ? 2 * position : position + extra;
  }

  // Before the rounds (`is_before`), each member that does not take part sends its data to its
  // neighbour; after them, it gets the result.
  CollectivePhase fold(double bytes, double reduced, bool is_before) const {
    Messages messages(links_);
    for (int i = 0; i < size() - power(); ++i) {
      messages.add(at(is_before ? 2 * i + 1 : 2 * i), at(is_before ? 2 * i : 2 * i + 1), bytes);
    }
    return messages.phase(1, reduced * reduce_per_byte_);
  }
  // Before the rounds, each member that does not take part exchanges bytes with its neighbour, and
  // both reduce what they get.
  CollectivePhase exchange_before(double bytes) const {
    Messages messages(links_);
    for (int i = 0; i < size() - power(); ++i) {
      messages.add(at(2 * i), at(2 * i + 1), bytes);
      messages.add(at(2 * i + 1), at(2 * i), bytes);
    }
    return messages.phase(1, bytes * reduce_per_byte_);
  }

  CollectivePhase exchange(int distance, double bytes, double reduced) const {
    Messages messages(links_);
    for (int position = 0; position < power(); ++position) {
      messages.add(at(member_at(position)), at(member_at(position ^ distance)), bytes);
    }
    return messages.phase(1, reduced * reduce_per_byte_);
  }

  // Returns the parent of a place in the in-order binary tree whose leaves are the even places; -1
  // for the root.
  int parent_of(int place) const {
    int root = 0;
    while ((root << 1 | 1) < size()) root = root << 1 | 1;
    if (place == root) return -1;
    do {
      const int height = std::countr_one(static_cast<unsigned>(place));
      place = place & (1 << (height + 1)) ? place - (1 << height) : place + (1 << height);
    } while (place >= size());
    return place;
  }

  const std::vector<int>& ranks_;
  const ClusterLinks& links_;
  const double reduce_per_byte_;
};

std::map<int, std::vector<int>> by_host(const std::vector<int>& ranks, const ClusterLinks& links) {
  std::map<int, std::vector<int>> hosts;
  for (const int rank : ranks) hosts[links.host(rank)].push_back(rank);
  return hosts;
}

// The links from which layout::choose() predicts the times of algorithms.
layout::Links predicted_links(const std::vector<int>& ranks, const ClusterLinks& links,
                              double reduce_per_byte) {
  bool crosses_groups = false;
  for (size_t i = 1; i < ranks.size(); ++i) {
    crosses_groups = crosses_groups || links.crosses_groups(ranks[i - 1], ranks[i]);
  }
  const auto& cluster = links.cluster();
  return {.inside = crosses_groups ? cluster.host : cluster.group,
          .between = cluster.network,
          .reduce_per_byte = reduce_per_byte};
}

class AllReduce {
 public:
  AllReduce(const Collective& collective, const std::vector<int>& ranks, const ClusterLinks& links)
      : collective_(collective),
        ranks_(ranks),
        links_(links),
        predicted_(predicted_links(ranks, links, collective.reduce_per_byte)) {
    for (const int rank : ranks) nodes_.push_back(links.host(rank));
  }

  Phases phases() const {
    const auto asked = collective_.algorithm;
    const bool chooses = asked == Algorithm::automatic;
    return phases_of(chooses ? layout::choose(predicted_, nodes_, size()) : asked);
  }

 private:
  size_t size() const { return static_cast<size_t>(collective_.bytes); }

  Phases phases_of(Algorithm algorithm) const {
    if (algorithm == Algorithm::hierarchical) {
      const auto hosts = by_host(ranks_, links_);
      const bool has_levels = hosts.size() > 1 && hosts.size() < ranks_.size();
      if (has_levels) return hierarchical(hosts);
      algorithm = Algorithm::ring;
    }
    return flat(algorithm, ranks_, collective_.bytes);
  }

  Phases flat(Algorithm algorithm, const std::vector<int>& ranks, double bytes) const {
    const Rounds rounds(ranks, links_, collective_.reduce_per_byte);
    switch (algorithm) {
      case Algorithm::recursive_doubling:
        return rounds.recursive_doubling(bytes);
      case Algorithm::rabenseifner:
        return rounds.rabenseifner(bytes);
      case Algorithm::double_tree:
        return rounds.double_tree(bytes);
      default:
        return rounds.ring(bytes, 2, true);
    }
  }

  Phases hierarchical(const std::map<int, std::vector<int>>& hosts) const {
    size_t blocks = ranks_.size();
    std::vector<Phases> before, between, after;
    for (const auto& [host, ranks] : hosts) {
      blocks = std::min(blocks, ranks.size());
      if (ranks.size() < 2) continue;
      const Rounds rounds(ranks, links_, collective_.reduce_per_byte);
      before.push_back(rounds.ring(collective_.bytes, 1, true));
      after.push_back(rounds.ring(collective_.bytes, 1, false));
    }
    const auto algorithm = layout::choose_between(predicted_, nodes_, size());
    for (size_t block = 0; block < blocks; ++block) {
      std::vector<int> members;
      for (const auto& [host, ranks] : hosts) members.push_back(ranks[block]);
      between.push_back(flat(algorithm, members, collective_.bytes / static_cast<double>(blocks)));
    }
    auto phases = together(before);
    for (const auto& part : {together(between), together(after)}) {
      phases.insert(phases.end(), part.begin(), part.end());
    }
    return phases;
  }

  const Collective& collective_;
  const std::vector<int>& ranks_;
  const ClusterLinks& links_;
  const layout::Links predicted_;
  std::vector<int> nodes_;
};

Phases summation_phases(const Collective& collective, const std::vector<int>& ranks,
                        const ClusterLinks& links) {
  const auto hosts = by_host(ranks, links);
  const bool has_levels =
      collective.sums_on_hosts && hosts.size() > 1 && hosts.size() < ranks.size();
  if (!has_levels) {
    return Rounds(ranks, links, collective.reduce_per_byte)
        .summation(collective.bytes, collective.spares);
  }
  std::vector<int> roots;
  std::vector<Phases> before, after;
  for (const auto& [host, members] : hosts) {
    const Rounds rounds(members, links, collective.reduce_per_byte);
    roots.push_back(members.front());
    before.push_back({rounds.to_first(collective.bytes, true)});
    after.push_back({rounds.to_first(collective.bytes, false)});
  }
  std::ranges::sort(roots);
  auto phases = together(before);
  for (const auto& part : {Rounds(roots, links, collective.reduce_per_byte)
                               .summation(collective.bytes, collective.spares),
                           together(after)}) {
    phases.insert(phases.end(), part.begin(), part.end());
  }
  return phases;
}

}  // namespace

Phases collective_phases(const Collective& collective, const std::vector<int>& ranks,
                         const ClusterLinks& links) {
  if (ranks.size() < 2 || collective.bytes <= 0) return {};
  switch (collective.kind) {
    case CollectiveKind::reduce_scatter:
      return Rounds(ranks, links, collective.reduce_per_byte).ring(collective.bytes, 1, true);
    case CollectiveKind::all_gather:
      return Rounds(ranks, links, 0).ring(collective.bytes, 1, false);
    case CollectiveKind::summation:
      return summation_phases(collective, ranks, links);
    default:
      return AllReduce(collective, ranks, links).phases();
  }
}

Phases together(const std::vector<Phases>& all) {
  size_t count = 0;
  for (const auto& one : all) count = std::max(count, one.size());
  Phases merged(count);
  for (size_t i = 0; i < count; ++i) {
    auto& phase = merged[i];
    std::map<int, double> bytes;
    for (const auto& one : all) {
      if (i >= one.size()) continue;  // has ended
      phase.seconds = std::max(phase.seconds, one[i].seconds);
      phase.bytes = std::max(phase.bytes, one[i].bytes);
      for (const auto& use : one[i].uses) bytes[use.link] += use.weight * one[i].bytes;
    }
    if (phase.bytes == 0) continue;
    for (const auto& [link, moved] : bytes) phase.uses.push_back({link, moved / phase.bytes});
  }
  return merged;
}

}  // namespace troika::plan
