#include "troika/plan/simulation/collective_rounds.h"

#include <algorithm>
#include <cmath>

#include "troika/plan/simulation/summation_links.h"

namespace troika::plan {

Phases Rounds::ring(double bytes, int turns, bool reduces) const {
  Messages messages(links_);
  const double each = bytes * (size() - 1) / size();
  for (int i = 0; i < size(); ++i) messages.add(at(i), at((i + 1) % size()), turns * each);
  return {messages.phase(turns * (size() - 1), reduces ? each * reduce_per_byte_ : 0)};
}

Phases Rounds::shift(double bytes) const {
  Messages messages(links_);
  for (int i = 0; i < size(); ++i) messages.add(at(i), at((i + 1) % size()), bytes);
  return {messages.phase(1, 0)};
}

Phases Rounds::all_to_all(double bytes) const {
  Messages messages(links_);
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      if (from != to) messages.add(at(from), at(to), bytes / (size() - 1));
    }
  }
  return {messages.phase(size() - 1, 0)};
}

Phases Rounds::summation(const Collective& collective) const {
  auto servers = collective.spares;
  const auto shares = summation_split(collective.links, ranks_, servers, links_).shares();
  servers.insert(servers.end(), ranks_.begin(), ranks_.end());
  Messages messages(links_);
  for (size_t s = 0; s < servers.size(); ++s) {
    for (const int rank : ranks_) {
      messages.add(rank, servers[s], shares[s] * collective.bytes);
      messages.add(servers[s], rank, shares[s] * collective.bytes);
    }
  }
  const double most = std::ranges::max(shares) * collective.bytes;
  return {messages.phase(2, most * (size() - 1) * reduce_per_byte_)};
}

CollectivePhase Rounds::to_first(double bytes, bool is_before) const {
  Messages messages(links_);
  for (int i = 1; i < size(); ++i) {
    messages.add(at(is_before ? i : 0), at(is_before ? 0 : i), bytes);
  }
  return messages.phase(1, is_before ? (size() - 1) * bytes * reduce_per_byte_ : 0);
}

Phases Rounds::recursive_doubling(double bytes) const {
  Phases phases;
  if (has_fold()) phases.push_back(fold(bytes, bytes, true));
  for (int distance = 1; distance < power(); distance *= 2) {
    phases.push_back(exchange(distance, bytes, bytes));
  }
  if (has_fold()) phases.push_back(fold(bytes, 0, false));
  return phases;
}

Phases Rounds::rabenseifner(double bytes) const {
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

Phases Rounds::double_tree(double bytes) const {
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

int Rounds::member_at(int position) const {
  const int extra = size() - power();
  return position < extra ? 2 * position : position + extra;
}

CollectivePhase Rounds::fold(double bytes, double reduced, bool is_before) const {
  Messages messages(links_);
  for (int i = 0; i < size() - power(); ++i) {
    messages.add(at(is_before ? 2 * i + 1 : 2 * i), at(is_before ? 2 * i : 2 * i + 1), bytes);
  }
  return messages.phase(1, reduced * reduce_per_byte_);
}

CollectivePhase Rounds::exchange_before(double bytes) const {
  Messages messages(links_);
  for (int i = 0; i < size() - power(); ++i) {
    messages.add(at(2 * i), at(2 * i + 1), bytes);
    messages.add(at(2 * i + 1), at(2 * i), bytes);
  }
  return messages.phase(1, bytes * reduce_per_byte_);
}

CollectivePhase Rounds::exchange(int distance, double bytes, double reduced) const {
  Messages messages(links_);
  for (int position = 0; position < power(); ++position) {
    messages.add(at(member_at(position)), at(member_at(position ^ distance)), bytes);
  }
  return messages.phase(1, reduced * reduce_per_byte_);
}

int Rounds::parent_of(int place) const {
  int root = 0;
  while ((root << 1 | 1) < size()) root = root << 1 | 1;
  if (place == root) return -1;
  do {
    const int height = std::countr_one(static_cast<unsigned>(place));
    place = place & (1 << (height + 1)) ? place - (1 << height) : place + (1 << height);
  } while (place >= size());
  return place;
}

}  // namespace troika::plan
