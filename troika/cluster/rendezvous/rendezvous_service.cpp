#include "troika/cluster/rendezvous/rendezvous_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace troika::cluster {

namespace {

// Ranks usually leave together. This delay collects their departures; ranks that have left by then
// are not notified of the others.
constexpr Milliseconds kDepartureTime{10};
// An upper bound for the waiting time of a question, in ms.
constexpr uint64_t kLongestInquiry = 3'600'000;

}  // namespace

RendezvousService::RendezvousService(net::Endpoint& endpoint, Roster roster, RelayRules rules,
                                     std::function<std::string()> unwelcome)
    : Service(endpoint),
      unwelcome_(std::move(unwelcome)),
      roster_(std::move(roster)),
      plan_(rules),
      members_(*this, roster_.world_size()),
      inquiries_([this](const std::vector<int>& ranks,
                        const Frame& frame) { members_.send(ranks, encode(frame)); },
                 [&endpoint] { return endpoint.now(); }) {}

std::optional<net::Duration> RendezvousService::due() const {
  std::optional<net::Duration> first;
  const auto consider = [&](const std::optional<net::Duration>& other) {
    if (other && (!first || *other < *first)) first = other;
  };
  consider(gathering_ ? roster_.due() : inquiries_.due());
  consider(members_.due());
  if (!news_.empty()) consider(news_due_);
  return first;
}

void RendezvousService::late() {
  const auto now = endpoint().now();
  if (gathering_ && roster_.due() && *roster_.due() <= now) {
    return fail_all(roster_.late(unwelcome_()));
  }
  for (const int rank : members_.overdue(now)) {
    lose(rank, "it has not come back since the rank that relayed for it ended");
  }
  if (!gathering_) inquiries_.proceed();
}

void RendezvousService::handle(Peer& from, const Frame& frame) {
  const bool is_others = frame.message == Message::relayed || frame.message == Message::parted;
  if (from.relays && is_others) return handle_relayed(from, frame);
  if (!from.admitted()) {
    if (frame.message == Message::hello) return greet(from, frame);
    return end(from, "it says no hello");
  }
  // A relay's own rank may be lost while the relay continues.
  if (members_.goes_through(from.rank, from)) handle_rank(from.rank, frame);
}

void RendezvousService::greet(Peer& from, const Frame& frame) {
  const auto hello = hello_from_json(frame.value);
  if (!hello) return end(from, "it says no hello");
  if (failed_) return refuse(from, *failed_);
  const bool is_ours = hello->rank > 0 && hello->rank < roster_.world_size();
  if (hello->direct && is_ours && members_.can_come_back(hello->rank)) {
    return take_back(from, hello->rank);
  }
  if (const auto verdict = roster_.objection(*hello)) {
    refuse(from, verdict->refusal);
    if (verdict->for_all) fail_all(verdict->refusal);
    return;
  }
  const auto place = plan_.place(*hello, from.name);
  switch (place.role) {
    case RelayPlan::Role::direct:
      from.rank = hello->rank;
      return admit(from, *hello);
    case RelayPlan::Role::relay:
      from.rank = hello->rank;
      from.relays = true;
      send(from, {Message::relay});
      return admit(from, *hello);
    case RelayPlan::Role::through:
      // Once connected to the relay, the rank closes this connection. If it cannot connect, it
      // sends another hello here.
      send(from, {Message::go, static_cast<uint64_t>(place.port), place.endpoint,
                  std::to_string(place.relay)});
  }
}

void RendezvousService::admit(Peer& way, const Hello& hello) {
  roster_.enter(hello, endpoint().now());
  members_.enter(hello.rank, way);
  inquiries_.arrived(hello.rank);
  if (!roster_.complete()) return;
  gathering_ = false;
  // Relays forward it to their ranks.
  const Frame welcome{Message::welcome, 0, "", members_.relays()};
  for (const auto& [name, peer] : peers()) {
    if (peer.admitted()) send(peer, welcome);
  }
}

// Reconnects a rank whose relay has ended or is about to end.
void RendezvousService::take_back(Peer& way, int rank) {
  way.rank = rank;
  members_.enter(rank, way);
  inquiries_.arrived(rank);
  if (gathering_) return;
  send(way, {Message::welcome, 0, "", members_.relays()});
  if (!old_news_.empty()) send(way, old_news_);
}

void RendezvousService::handle_relayed(Peer& relay, const Frame& frame) {
  const int rank = static_cast<int>(frame.number);
  if (frame.number >= static_cast<uint64_t>(roster_.world_size())) {
    return end(relay, "it relays for a rank that does not exist");
  }
  if (frame.message == Message::parted) {
    if (members_.goes_through(rank, relay)) lose(rank, frame.value);
    return;
  }
  std::string_view bytes = frame.value;
  const Frame said = take_frame(bytes);
  if (said.message != Message::hello) {
    if (members_.goes_through(rank, relay)) handle_rank(rank, said);
    return;
  }
  const auto hello = hello_from_json(said.value);
  if (!hello || hello->rank != rank) return end(relay, "it sent what no relay sends");
  if (failed_) return send(relay, {Message::refused, 0, "", to_json(*failed_)});
  if (const auto verdict = roster_.objection(*hello)) return fail_all(verdict->refusal);
  admit(relay, *hello);
}

void RendezvousService::handle_rank(int rank, const Frame& frame) {
  switch (frame.message) {
    case Message::set:
      set(frame.key, frame.value);
      return members_.send(rank, {Message::value, frame.number});
    case Message::get:
      return get(rank, frame);
    case Message::add:
      return add(rank, frame);
    case Message::leave:
      return leave(rank, frame);
    case Message::ask:
      return inquiries_.ask(
          rank, frame.key, frame.value,
          Milliseconds(static_cast<int64_t>(std::min<uint64_t>(frame.number, kLongestInquiry))));
    case Message::answer:
      return inquiries_.answer(rank, frame.number, frame.value);
    case Message::fail:
      members_.send(rank, {Message::value, frame.number});
      members_.end(rank);
      return lose(rank, frame.value);
    default:
      members_.end(rank);
      return lose(rank, "it sent what only a server sends");
  }
}

void RendezvousService::set(const std::string& key, const std::string& value) {
  for (const auto& [rank, call] : keys_.set(key, value)) {
    members_.send(rank, {Message::value, call, "", value});
  }
}

void RendezvousService::get(int rank, const Frame& frame) {
  if (const std::string* value = keys_.find(frame.key)) {
    members_.send(rank, {Message::value, frame.number, "", *value});
  } else if (first_loss_) {
    members_.send(rank, {Message::failed, frame.number, "", to_json(*first_loss_)});
  } else {
    keys_.wait(frame.key, {rank, frame.number});
  }
}

void RendezvousService::add(int rank, const Frame& frame) {
  const auto sum = keys_.sum(frame.key, frame.value);
  if (const auto* refusal = std::get_if<Refusal>(&sum)) {
    return members_.send(rank, {Message::failed, frame.number, "", to_json(*refusal)});
  }
  const std::string text = std::to_string(std::get<int64_t>(sum));
  set(frame.key, text);
  members_.send(rank, {Message::value, frame.number, "", text});
}

void RendezvousService::leave(int rank, const Frame& frame) {
  if (!members_.is_there(rank)) return;
  members_.leave(rank);
  inquiries_.gone(rank);
  announce({Message::left, static_cast<uint64_t>(rank), "", frame.value}, kDepartureTime);
  if (rank == 0) {
    host_leave_ = frame.number;
  } else {
    members_.send(rank, {Message::value, frame.number});
  }
}

void RendezvousService::announce(const Frame& news, Milliseconds within) {
  const auto due = endpoint().now() + within;
  if (news_.empty() || due < news_due_) news_due_ = due;
  news_ += encode(news);
}

void RendezvousService::send_news() {
  if (!news_.empty()) members_.send(members_.all_there(), news_);
  old_news_ += std::exchange(news_, {});
}

void RendezvousService::after_event() {
  if (!news_.empty() && news_due_ <= endpoint().now()) send_news();
  if (!host_leave_ || members_.others() > 0) return;
  members_.send(0, {Message::value, *host_leave_});
  host_leave_.reset();
}

void RendezvousService::fail_all(const Refusal& why) {
  gathering_ = false;
  failed_ = why;
  for (auto& [name, peer] : peers()) {
    if (peer.relays) {
      // The relay forwards it to its ranks, and ends when they have ended.
      send(peer, {Message::refused, 0, "", to_json(why)});
    } else if (!peer.closing) {
      refuse(peer, why);
    }
  }
}

void RendezvousService::part_from(Peer& gone) {
  if (!gone.admitted()) return;
  for (const int rank : members_.cut_off(gone, endpoint().now())) {
    // The relay's own rank is lost; its other ranks may reconnect.
    if (rank == gone.rank) {
      lose(rank, gone.reason);
    } else {
      inquiries_.gone(rank);
    }
  }
}

void RendezvousService::lose(int rank, const std::string& reason) {
  keys_.forget(rank);
  inquiries_.gone(rank);
  if (!members_.remove(rank) || failed_) return;
  if (gathering_) return fail_all(roster_.gone(rank, reason));
  const std::string why = fmt::format("{} ({})", reason, roster_.who(rank));
  if (!first_loss_) {
    first_loss_ =
        Refusal{ErrorKind::peer, {.what = fmt::format("rank {} was lost", rank), .got = why}};
  }
  announce({Message::lost, static_cast<uint64_t>(rank), "", why}, Milliseconds(0));
  for (const auto& [waiting, call] : keys_.take_waiting()) {
    members_.send(waiting, {Message::failed, call, "", to_json(*first_loss_)});
  }
}

void RendezvousService::finish(bool bye) {
  send_news();
  if (!bye) return;
  for (const auto& [name, peer] : peers()) {
    if (peer.admitted() && (peer.relays || members_.is_there(peer.rank))) {
      send(peer, {Message::bye});
    }
  }
}

}  // namespace troika::cluster
