#include "troika/cluster/members.h"

#include <map>
#include <utility>

#include "troika/cluster/inquiries.h"
#include "troika/cluster/ranges.h"

namespace troika::cluster {

namespace {

// A rank whose relay has ended comes back at once; one that is stopped does not.
constexpr Milliseconds kAbsenceTime{5000};

}  // namespace

void Members::enter(int rank, Peer& way) {
  Member& member = of(rank);
  if (member.state == State::absent && rank != 0) ++others_;
  member = {State::there, &way};
}

bool Members::can_come_back(int rank) const {
  const Member& member = of(rank);
  return member.state == State::there && (!member.way || member.way->relays);
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

void Members::send(const std::vector<int>& ranks, std::string_view frames) const {
  std::map<Peer*, std::vector<int>> through;
  for (const int rank : ranks) {
    Peer* const way = of(rank).way;
    if (!way || !way->talks()) continue;
    if (way->relays) {
      through[way].push_back(rank);
    } else {
      way->send_encoded(frames);
    }
  }
  for (const auto& [relay, its] : through) {
    relay->send({Message::relayed, 0, to_ranges(its), std::string(frames)});
  }
}

void Members::refuse(int rank, const Refusal& why) const {
  Peer* const way = of(rank).way;
  if (!way || way->closing) return;
  if (!way->relays) return way->refuse(why);
  send(rank, {Message::refused, 0, "", to_json(why)});
  end(rank, "");
}

void Members::end(int rank, const std::string& why) const {
  Peer* const way = of(rank).way;
  if (!way) return;
  if (!way->relays) return way->end(why);
  way->send({Message::parted, static_cast<uint64_t>(rank)});
}

std::vector<int> Members::cut_off(const Peer& way) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    Member& member = members_[rank];
    if (member.way != &way) continue;
    member.way = nullptr;
    if (member.state != State::there) continue;
    member.back_until = Deadline::after(kAbsenceTime);
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::optional<Deadline> Members::deadline() const {
  std::optional<Deadline> first;
  for (const auto& member : members_) {
    if (member.back_until && (!first || *member.back_until < *first)) first = member.back_until;
  }
  return first;
}

std::vector<int> Members::overdue() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const auto& until = members_[rank].back_until;
    if (until && until->passed()) ranks.push_back(static_cast<int>(rank));
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
