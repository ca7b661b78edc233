#include "troika/cluster/rendezvous/members.h"

#include <map>
#include <utility>

#include "troika/cluster/rendezvous/inquiries.h"
#include "troika/cluster/rendezvous/ranges.h"

namespace troika::cluster {

namespace {

// A rank whose relay has ended reconnects at once, unless its process is stopped.
constexpr std::chrono::seconds kAbsenceTime{5};

}  // namespace

void Members::enter(int rank, Peer& way) {
  Member& member = of(rank);
  if (member.state == State::absent && rank != 0) ++others_;
  member = {State::there, &way};
}

bool Members::can_come_back(int rank) const {
  const Member& member = of(rank);
  return member.state == State::there && (!member.way || goes_through_relay(rank, *member.way));
}

void Members::leave(int rank) {
  Member& member = of(rank);
  if (member.state == State::there && rank != 0) --others_;
  member.state = State::left;
}

bool Members::remove(int rank) {
  Member& member = of(rank);
  const bool was_there = member.state == State::there;
  if (was_there && rank != 0) --others_;
  member = {};
  return was_there;
}

std::vector<int> Members::all_there() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == State::there) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void Members::send(int rank, const Frame& frame) const {
  send(std::vector{rank}, encode(frame));
}

void Members::send(const std::vector<int>& ranks, const std::string& frames) const {
  std::map<Peer*, std::vector<int>> through;
  for (const int rank : ranks) {
    Peer* const way = of(rank).way;
    if (!way) continue;
    if (goes_through_relay(rank, *way)) {
      through[way].push_back(rank);
    } else {
      service_.send(*way, frames);
    }
  }
  for (const auto& [relay, its] : through) {
    service_.send(*relay, {Message::relayed, 0, to_ranges(its), frames});
  }
}

void Members::end(int rank) const {
  Peer* const way = of(rank).way;
  if (!way) return;
  if (goes_through_relay(rank, *way)) {
    service_.send(*way, {Message::parted, static_cast<uint64_t>(rank)});
  } else if (!way->relays) {
    service_.close(*way);
  }
}

std::vector<int> Members::cut_off(const Peer& way, net::Duration now) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    Member& member = members_[rank];
    if (member.way != &way) continue;
    member.way = nullptr;
    if (member.state != State::there) continue;
    member.back_until = now + kAbsenceTime;
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::optional<net::Duration> Members::due() const {
  std::optional<net::Duration> first;
  for (const auto& member : members_) {
    if (member.back_until && (!first || *member.back_until < *first)) first = member.back_until;
  }
  return first;
}

std::vector<int> Members::overdue(net::Duration now) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const auto& until = members_[rank].back_until;
    if (until && *until <= now) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::string Members::relays() const {
  std::map<std::string, std::vector<int>> ranks;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const Peer* const way = members_[rank].way;
    if (way && way->relays) ranks[std::to_string(way->rank)].push_back(static_cast<int>(rank));
  }
  return pack_answers(ranks);
}

}  // namespace troika::cluster
