#include "troika/cluster/rendezvous_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "troika/cluster/inquiries.h"
#include "troika/cluster/key_store.h"
#include "troika/cluster/peer_server.h"

namespace troika::cluster {

namespace {

// Ranks mostly leave together: those that have left by then are not told of the others.
constexpr Milliseconds kDepartureTime{10};
// Longer than anybody waits for answers.
constexpr uint64_t kLongestInquiry = 3'600'000;

// All state is the serving thread's own.
class Service : public PeerServer {
 public:
  Service(net::Descriptor listener, net::ServerHandshake handshake, Roster roster)
      : PeerServer(std::move(listener), std::move(handshake)),
        roster_(std::move(roster)),
        inquiries_([this](int rank, const Frame& frame) {
          if (Peer* peer = peer_of(rank)) peer->send(frame);
        }) {}

  void finish(bool bye);

 private:
  void handle(Peer& from, const Frame& frame) override;
  void part_from(Peer& gone) override;
  void before_flush() override;
  std::optional<Deadline> deadline() const override;
  void late() override;
  void handle_hello(Peer& from, const Frame& frame);
  void set(const std::string& key, const std::string& value);
  void get(Peer& from, const Frame& frame);
  void add(Peer& from, const Frame& frame);
  // Tells all that are there, at the latest when this much time has passed.
  void announce(const Frame& news, Milliseconds within);
  void send_news();
  Peer* peer_of(int rank) const;
  void fail_all(const Refusal& why);
  void leave(Peer& from, const Frame& frame);

  Roster roster_;
  bool gathering_ = true;
  std::optional<Refusal> failed_;
  KeyStore keys_;
  std::optional<Refusal> first_loss_;
  std::optional<uint64_t> host_leave_;  // rank 0's call, answered when it is the last
  std::vector<Peer*> peers_;            // by rank; null for one that is not there
  int others_ = 0;                      // of them without rank 0, that have not left
  std::string news_;                    // frames for all that are there
  Deadline news_due_ = Deadline::after(Milliseconds(0));
  Inquiries inquiries_;
};

std::optional<Deadline> Service::deadline() const {
  auto first = gathering_ ? roster_.deadline() : inquiries_.deadline();
  if (!news_.empty() && (!first || news_due_ < *first)) first = news_due_;
  return first;
}

void Service::late() {
  if (gathering_) return fail_all(roster_.late(unwelcome()));
  inquiries_.proceed();
}

void Service::handle(Peer& from, const Frame& frame) {
  if (!from.admitted()) {
    if (frame.message == Message::hello) return handle_hello(from, frame);
    from.ended = true;
    return;
  }
  switch (frame.message) {
    case Message::set:
      set(frame.key, frame.value);
      return from.send({Message::value, frame.number});
    case Message::get:
      return get(from, frame);
    case Message::add:
      return add(from, frame);
    case Message::leave:
      return leave(from, frame);
    case Message::ask:
      return inquiries_.ask(
          from.rank, frame.key, frame.value,
          Milliseconds(static_cast<int64_t>(std::min<uint64_t>(frame.number, kLongestInquiry))));
    case Message::answer:
      return inquiries_.answer(from.rank, frame.number, frame.value);
    case Message::fail:
      from.ended = true;
      from.reason = frame.value;
      return;
    default:
      from.ended = true;
      from.reason = "it sent what only a server sends";
  }
}

void Service::handle_hello(Peer& from, const Frame& frame) {
  const auto hello = hello_from_json(frame.value);
  if (!hello) {
    from.ended = true;
    return;
  }
  if (failed_) return from.refuse(*failed_);
  if (const auto verdict = roster_.admit(*hello)) {
    from.refuse(verdict->refusal);
    if (verdict->for_all) fail_all(verdict->refusal);
    return;
  }
  from.rank = hello->rank;
  peers_.resize(static_cast<size_t>(hello->world_size));
  peers_[static_cast<size_t>(from.rank)] = &from;
  inquiries_.arrived(from.rank);
  if (from.rank != 0) ++others_;
  if (!roster_.complete()) return;
  gathering_ = false;
  for (auto& connection : connections()) {
    if (connection.admitted()) connection.send({Message::welcome});
  }
}

void Service::set(const std::string& key, const std::string& value) {
  for (const auto& [peer, call] : keys_.set(key, value)) {
    peer->send({Message::value, call, "", value});
  }
}

void Service::get(Peer& from, const Frame& frame) {
  if (const std::string* value = keys_.find(frame.key)) {
    from.send({Message::value, frame.number, "", *value});
  } else if (first_loss_) {
    from.send({Message::failed, frame.number, "", to_json(*first_loss_)});
  } else {
    keys_.wait(frame.key, {&from, frame.number});
  }
}

void Service::add(Peer& from, const Frame& frame) {
  const auto sum = keys_.sum(frame.key, frame.value);
  if (const auto* refusal = std::get_if<Refusal>(&sum)) {
    return from.send({Message::failed, frame.number, "", to_json(*refusal)});
  }
  const std::string text = std::to_string(std::get<int64_t>(sum));
  set(frame.key, text);
  from.send({Message::value, frame.number, "", text});
}

Peer* Service::peer_of(int rank) const {
  return peers_[static_cast<size_t>(rank)];
}

void Service::leave(Peer& from, const Frame& frame) {
  if (std::exchange(from.left, true)) return;
  inquiries_.gone(from.rank);
  announce({Message::left, static_cast<uint64_t>(from.rank), "", frame.value}, kDepartureTime);
  if (from.rank == 0) {
    host_leave_ = frame.number;
  } else {
    --others_;
    from.send({Message::value, frame.number});
  }
}

void Service::announce(const Frame& news, Milliseconds within) {
  const auto due = Deadline::after(within);
  if (news_.empty() || due < news_due_) news_due_ = due;
  news_ += encode(news);
}

void Service::send_news() {
  for (Peer* peer : peers_) {
    if (peer && peer->talks() && !peer->left) peer->send_encoded(news_);
  }
  news_.clear();
}

void Service::before_flush() {
  if (!news_.empty() && news_due_.passed()) send_news();
  if (!host_leave_ || others_ > 0) return;
  if (Peer* host = peer_of(0)) host->send({Message::value, *host_leave_});
  host_leave_.reset();
}

void Service::fail_all(const Refusal& why) {
  gathering_ = false;
  failed_ = why;
  for (auto& connection : connections()) {
    if (connection.admitted() && !connection.closing) connection.refuse(why);
  }
}

void Service::part_from(Peer& gone) {
  keys_.forget(&gone);
  if (!gone.admitted()) return;
  peers_[static_cast<size_t>(gone.rank)] = nullptr;
  inquiries_.gone(gone.rank);
  if (gone.left) return;
  if (gone.rank != 0) --others_;
  if (gone.closing) return;
  if (gathering_) return fail_all(roster_.gone(gone.rank, gone.reason));
  const std::string why = fmt::format("{} ({})", gone.reason, roster_.who(gone.rank));
  if (!first_loss_) {
    first_loss_ =
        Refusal{ErrorKind::peer, {.what = fmt::format("rank {} was lost", gone.rank), .got = why}};
  }
  announce({Message::lost, static_cast<uint64_t>(gone.rank), "", why}, Milliseconds(0));
  for (const auto& [peer, call] : keys_.take_waiting()) {
    peer->send({Message::failed, call, "", to_json(*first_loss_)});
  }
}

void Service::finish(bool bye) {
  send_news();
  PeerServer::finish([bye](Peer& peer) {
    if (bye && !peer.left) peer.send({Message::bye});
  });
}

}  // namespace

RendezvousServer::RendezvousServer(net::Descriptor listener, net::ServerHandshake handshake,
                                   Roster roster)
    : thread_([this, service = std::make_unique<Service>(std::move(listener), std::move(handshake),
                                                         std::move(roster))] {
        service->run(stop_);
        service->finish(bye_);
      }) {}

RendezvousServer::~RendezvousServer() {
  stop_.wake();
  thread_.join();
}

}  // namespace troika::cluster
