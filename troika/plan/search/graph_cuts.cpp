#include "troika/plan/search/graph_cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <set>
#include <utility>

#include "troika/base/error.h"

namespace troika::plan {

using layout::Profile;

namespace {

using Bits = std::vector<uint64_t>;

bool has(const Bits& bits, size_t at) {
  return (bits[at / 64] >> (at % 64) & 1) != 0;
}
void add(Bits& bits, size_t at) {
  bits[at / 64] |= uint64_t{1} << (at % 64);
}
void unite(Bits& bits, const Bits& more) {
  for (size_t i = 0; i < bits.size(); ++i) bits[i] |= more[i];
}

// The blocks that the search considers, by their indices in the profile, and their ancestors and
// readers.
class Graph {
 public:
  explicit Graph(const Profile& profile)
      : profile_(profile), words_((profile.blocks.size() + 63) / 64), readers_(profile.readers()) {
    inputs_.resize(readers_.size());
    for (size_t from = 0; from < readers_.size(); ++from) {
      for (const size_t to : readers_[from]) inputs_[to].push_back(from);
    }
    is_planned_.assign(readers_.size(), true);
    leave_out(inputs_, "Input");
    leave_out(readers_, "__getitem__");
    find_ancestors();
    find_universe();
  }

  Bits none() const { return Bits(words_, 0); }
  // The block and its ancestors: the blocks that it reads from, directly or not.
  const Bits& closure(size_t block) const { return closures_[block]; }
  const std::vector<size_t>& readers(size_t block) const { return readers_[block]; }
  const std::vector<size_t>& inputs(size_t block) const { return inputs_[block]; }
  size_t first() const { return first_; }
  // The blocks of the largest cut, in the profile's order.
  const std::vector<size_t>& universe() const { return universe_; }
  size_t blocks() const { return readers_.size(); }

  GraphCut cut_of(Bits members) const {
    GraphCut cut;
    Bits crossing = none();
    for (const size_t block : universe_) {
      if (!has(members, block)) continue;
      const auto& facts = profile_.blocks[block];
      ++cut.count;
      cut.seconds += facts.seconds();
      cut.activation_bytes += facts.saved_bytes;
      cut.parameter_bytes += facts.parameter_bytes;
      const bool is_read =
          std::ranges::any_of(readers_[block], [&](size_t to) { return has(members, to); });
      if (is_read) continue;
      add(crossing, block);
      unite(crossing, read_beyond_[block]);
    }
    for (const size_t block : universe_) {
      if (has(crossing, block)) cut.crossing_bytes += profile_.blocks[block].output_bytes;
    }
    cut.members = std::move(members);
    return cut;
  }
  double weight(size_t block) const {
    const auto& facts = profile_.blocks[block];
    return facts.parameter_bytes / std::max(facts.seconds(), 1e-9);
  }

 private:
  // Removes the blocks without `edges` whose layer begins with `prefix`. Edges removed by this call
  // do not count.
  void leave_out(const std::vector<std::vector<size_t>>& edges, const char* prefix) {
    std::vector<size_t> removed;
    for (size_t block = 0; block < edges.size(); ++block) {
      if (edges[block].empty() && profile_.blocks[block].layer.starts_with(prefix)) {
        removed.push_back(block);
      }
    }
    for (const size_t block : removed) {
      is_planned_[block] = false;
      for (auto& row : readers_) std::erase(row, block);
      for (auto& row : inputs_) std::erase(row, block);
      readers_[block].clear();
      inputs_[block].clear();
    }
  }
  void find_ancestors() {
    closures_.assign(readers_.size(), none());
    read_beyond_.assign(readers_.size(), none());
    for (const size_t block : profile_.topological_order()) {
      for (const size_t from : inputs_[block]) unite(closures_[block], closures_[from]);
      add(closures_[block], block);
    }
    for (size_t block = 0; block < readers_.size(); ++block) {
      for (size_t before = 0; before < readers_.size(); ++before) {
        if (before == block || !has(closures_[block], before)) continue;
        const bool is_beyond = std::ranges::any_of(
            readers_[before], [&](size_t to) { return !has(closures_[block], to); });
        if (is_beyond) add(read_beyond_[block], before);
      }
    }
  }
  void find_universe() {
    first_ = readers_.size();
    for (size_t block = readers_.size(); block-- > 0;) {
      if (is_planned_[block] && inputs_[block].empty()) first_ = block;
    }
    if (first_ == readers_.size()) {
      throw Error(
          "plan", ErrorKind::usage,
          {.what = "a profile", .got = "input layers alone", .expected = "a model's blocks"});
    }
    Bits all = closures_[first_];
    for (bool grows = true; grows;) {
      grows = false;
      for (size_t block = 0; block < readers_.size(); ++block) {
        const bool reads =
            std::ranges::any_of(inputs_[block], [&](size_t from) { return has(all, from); });
        if (!reads || has(all, block)) continue;
        unite(all, closures_[block]);
        grows = true;
      }
    }
    for (size_t block = 0; block < readers_.size(); ++block) {
      if (has(all, block)) {
        universe_.push_back(block);
      } else if (is_planned_[block]) {
        throw Error("plan", ErrorKind::usage,
                    {.what = "a profile whose blocks are not connected",
                     .got = fmt::format("no edge between the blocks of {} and {}",
                                        profile_.blocks[first_].name, profile_.blocks[block].name),
                     .expected = "edges that connect all blocks"});
      }
    }
  }

  const Profile& profile_;
  const size_t words_;
  std::vector<std::vector<size_t>> readers_;
  std::vector<std::vector<size_t>> inputs_;
  std::vector<bool> is_planned_;
  std::vector<Bits> closures_;
  // For each block: its ancestors with a reader that is neither this block nor its ancestor.
  std::vector<Bits> read_beyond_;
  size_t first_ = 0;
  std::vector<size_t> universe_;
};

// Returns all cuts, or nothing if there are more than `most`.
std::set<Bits> all_cuts(const Graph& graph, size_t most) {
  std::set<Bits> seen{graph.closure(graph.first())};
  std::deque<const Bits*> queue{&*seen.begin()};
  for (; !queue.empty(); queue.pop_front()) {
    const Bits& members = *queue.front();
    for (const size_t block : graph.universe()) {
      if (has(members, block)) continue;
      const bool reads =
          std::ranges::any_of(graph.inputs(block), [&](size_t from) { return has(members, from); });
      if (!reads) continue;
      auto next = members;
      unite(next, graph.closure(block));
      const auto [at, is_new] = seen.insert(std::move(next));
      if (is_new) queue.push_back(&*at);
      if (seen.size() > most) return {};
    }
  }
  return seen;
}

// Returns an order of the universe in which each block comes after its inputs. If several blocks
// may come next, the one with the least rank does.
std::vector<size_t> order_by(const Graph& graph, const std::function<double(size_t)>& rank) {
  std::vector<size_t> order, missing(graph.blocks(), 0), ready;
  for (const size_t block : graph.universe()) {
    missing[block] = graph.inputs(block).size();
    if (missing[block] == 0) ready.push_back(block);
  }
  while (!ready.empty()) {
    // Among blocks with equal ranks, this chooses the one that became ready last.
    size_t best = ready.size() - 1;
    for (size_t at = best; at-- > 0;) {
      if (rank(ready[at]) < rank(ready[best])) best = at;
    }
    const size_t block = ready[best];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(best));
    order.push_back(block);
    for (const size_t to : graph.readers(block)) {
      if (--missing[to] == 0) ready.push_back(to);
    }
  }
  return order;
}

// Adds about `count` prefixes of the order, at equal distances. The distance is measured by the
// blocks' shares of the model's time and of its parameters.
void add_prefixes(std::set<Bits>& cuts, const Graph& graph, const Profile& profile,
                  const std::vector<size_t>& order, size_t count) {
  double seconds = 0, bytes = 0;
  for (const size_t block : order) {
    seconds += profile.blocks[block].seconds();
    bytes += profile.blocks[block].parameter_bytes;
  }
  Bits members = graph.none();
  double sum = 0;
  size_t added = 0;
  for (const size_t block : order) {
    add(members, block);
    sum += profile.blocks[block].seconds() / std::max(seconds, 1e-30) +
           profile.blocks[block].parameter_bytes / std::max(bytes, 1e-30);
    if (order.size() > count && sum * static_cast<double>(count) / 2 < static_cast<double>(added)) {
      continue;
    }
    cuts.insert(members);
    ++added;
  }
  cuts.insert(members);
}

std::set<Bits> some_cuts(const Graph& graph, const Profile& profile, size_t some) {
  const std::array<std::function<double(size_t)>, 4> ranks{
      [](size_t) { return 0.0; }, [](size_t block) { return static_cast<double>(block); },
      [&](size_t block) { return graph.weight(block); },
      [&](size_t block) { return -graph.weight(block); }};
  std::set<Bits> cuts;
  for (const auto& rank : ranks) {
    add_prefixes(cuts, graph, profile, order_by(graph, rank), some / ranks.size());
  }
  return cuts;
}

}  // namespace

bool GraphCut::contains(const GraphCut& other) const {
  for (size_t i = 0; i < members.size(); ++i) {
    if ((other.members[i] & ~members[i]) != 0) return false;
  }
  return true;
}

GraphCuts find_cuts(const Profile& profile, size_t most, size_t some) {
  const Graph graph(profile);
  GraphCuts found;
  auto sets = all_cuts(graph, most);
  if (sets.empty()) {
    found.is_complete = false;
    sets = some_cuts(graph, profile, some);
  }
  for (const auto& members : sets) found.cuts.push_back(graph.cut_of(members));
  std::ranges::stable_sort(found.cuts, [](const GraphCut& one, const GraphCut& other) {
    return std::pair(one.seconds, one.count) < std::pair(other.seconds, other.count);
  });
  return found;
}

}  // namespace troika::plan
