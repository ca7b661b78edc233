#include "troika/plan/simulation/collectives.h"

#include <algorithm>
#include <map>

#include "troika/plan/simulation/collective_rounds.h"

namespace troika::plan {

using layout::Algorithm;

namespace {

std::map<int, std::vector<int>> by_host(const std::vector<int>& ranks, const ClusterLinks& links) {
  std::map<int, std::vector<int>> hosts;
  for (const int rank : ranks) hosts[links.host(rank)].push_back(rank);
  return hosts;
}

// Whether some of the ranks share a host, and others do not.
bool has_levels(const std::map<int, std::vector<int>>& hosts, const std::vector<int>& ranks) {
  return hosts.size() > 1 && hosts.size() < ranks.size();
}

// The links from which layout::choose() predicts the times of algorithms.
layout::Links predicted_links(const std::vector<int>& ranks, const ClusterLinks& links,
                              double reduce_per_byte) {
  bool crosses_groups = false;
  auto between = links.network(ranks.front());
  for (const int rank : ranks) between = layout::slower(between, links.network(rank));
  for (size_t i = 1; i < ranks.size(); ++i) {
    crosses_groups = crosses_groups || links.crosses_groups(ranks[i - 1], ranks[i]);
  }
  const auto& cluster = links.cluster();
  return {.inside = crosses_groups ? cluster.host : cluster.group,
          .between = between,
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
      if (has_levels(hosts, ranks_)) return hierarchical(hosts);
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

// Hosts with the same rank's block at the same place: on each other host, one rank reduces what the
// block's owner gets, or gathers what it sends.
CollectivePhase blocks_between_hosts(const Collective& collective, const std::vector<int>& ranks,
                                     const std::map<int, std::vector<int>>& hosts,
                                     const ClusterLinks& links) {
  const bool reduces = collective.kind == CollectiveKind::reduce_scatter;
  const double block = collective.bytes / static_cast<double>(ranks.size());
  Messages messages(links);
  for (const auto& [host, members] : hosts) {
    for (size_t place = 0; place < members.size(); ++place) {
      for (const auto& [other, others] : hosts) {
        if (other == host) continue;
        const int peer = others[place % others.size()];
        messages.add(reduces ? peer : members[place], reduces ? members[place] : peer, block);
      }
    }
  }
  const double received = block * static_cast<double>(hosts.size() - 1);
  return messages.phase(1, reduces ? received * collective.reduce_per_byte : 0);
}

Phases reduce_scatter_or_all_gather(const Collective& collective, const std::vector<int>& ranks,
                                    const ClusterLinks& links) {
  const bool reduces = collective.kind == CollectiveKind::reduce_scatter;
  const auto hosts = by_host(ranks, links);
  if (!has_levels(hosts, ranks)) {
    return Rounds(ranks, links, collective.reduce_per_byte).ring(collective.bytes, 1, reduces);
  }
  std::vector<Phases> inside;
  for (const auto& [host, members] : hosts) {
    if (members.size() < 2) continue;
    inside.push_back(
        Rounds(members, links, collective.reduce_per_byte).ring(collective.bytes, 1, reduces));
  }
  auto phases = together(inside);
  phases.insert(reduces ? phases.end() : phases.begin(),
                blocks_between_hosts(collective, ranks, hosts, links));
  return phases;
}

Phases summation_phases(const Collective& collective, const std::vector<int>& ranks,
                        const ClusterLinks& links) {
  const auto hosts = by_host(ranks, links);
  if (!collective.sums_on_hosts || !has_levels(hosts, ranks)) {
    return Rounds(ranks, links, collective.reduce_per_byte).summation(collective);
  }
  const double inside = collective.bytes * collective.host_sum_share;
  std::vector<int> roots;
  std::vector<Phases> before, after;
  for (const auto& [host, members] : hosts) {
    const Rounds rounds(members, links, collective.reduce_per_byte);
    roots.push_back(members.front());
    before.push_back({rounds.to_first(inside, true)});
    after.push_back({rounds.to_first(inside, false)});
  }
  std::ranges::sort(roots);
  auto phases = together(before);
  for (const auto& part :
       {Rounds(roots, links, collective.reduce_per_byte).summation(collective), together(after)}) {
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
    case CollectiveKind::all_gather:
      return reduce_scatter_or_all_gather(collective, ranks, links);
    case CollectiveKind::shift:
      return Rounds(ranks, links, 0).shift(collective.bytes);
    case CollectiveKind::all_to_all:
      return Rounds(ranks, links, 0).all_to_all(collective.bytes);
    case CollectiveKind::summation:
      return summation_phases(collective, ranks, links);
    default:
      return AllReduce(collective, ranks, links).phases();
  }
}

double seconds_alone(const Phases& phases, const std::vector<double>& bandwidths) {
  double seconds = 0;
  for (const auto& phase : phases) {
    double slowest = 0;  // seconds per byte
    for (const auto& use : phase.uses) {
      slowest = std::max(slowest, use.weight / bandwidths[static_cast<size_t>(use.link)]);
    }
    seconds += phase.seconds + phase.bytes * slowest;
  }
  return seconds;
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
