#include "troika/cluster/rendezvous_server.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "troika/cluster/key_store.h"
#include "troika/cluster/peer_server.h"

namespace troika::cluster {

namespace {

// All state is the serving thread's own.
class Service : public PeerServer {
 public:
  Service(net::Descriptor listener, net::ServerHandshake handshake, Roster roster)
      : PeerServer(std::move(listener), std::move(handshake)), roster_(std::move(roster)) {}

  void finish(bool bye);

 private:
  void handle(Peer& from, const Frame& frame) override;
  void part_from(Peer& gone) override;
  void before_flush() override { let_host_leave(); }
  std::optional<Deadline> deadline() const override;
  void late() override { fail_all(roster_.late(unwelcome())); }
  void handle_hello(Peer& from, const Frame& frame);
  void set(const std::string& key, const std::string& value);
  void get(Peer& from, const Frame& frame);
  void add(Peer& from, const Frame& frame);
  void tell_others(const Peer& than, const Frame& frame);
  void pass_answer_on(const Peer& from, const Frame& frame);
  void fail_all(const Refusal& why);
  void let_host_leave();

  Roster roster_;
  bool gathering_ = true;
  std::optional<Refusal> failed_;
  KeyStore keys_;
  std::optional<Refusal> first_loss_;
  std::optional<uint64_t> host_leave_;  // rank 0's call, answered when it is the last
};

std::optional<Deadline> Service::deadline() const {
  return gathering_ ? roster_.deadline() : std::nullopt;
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
      from.left = true;
      tell_others(from, {Message::left, static_cast<uint64_t>(from.rank), "", frame.value});
      if (from.rank != 0) return from.send({Message::value, frame.number});
      host_leave_ = frame.number;
      return;
    case Message::ask:
      return tell_others(from,
                         {Message::ask, static_cast<uint64_t>(from.rank), frame.key, frame.value});
    case Message::answer:
      return pass_answer_on(from, frame);
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

void Service::tell_others(const Peer& than, const Frame& frame) {
  for (auto& connection : connections()) {
    const bool listens = connection.admitted() && connection.talks() && !connection.left;
    if (listens && &connection != &than) connection.send(frame);
  }
}

void Service::pass_answer_on(const Peer& from, const Frame& frame) {
  for (auto& connection : connections()) {
    if (connection.admitted() && static_cast<uint64_t>(connection.rank) == frame.number) {
      connection.send({Message::answer, static_cast<uint64_t>(from.rank), frame.key, frame.value});
    }
  }
}

void Service::fail_all(const Refusal& why) {
  gathering_ = false;
  failed_ = why;
  for (auto& connection : connections()) {
    if (connection.admitted() && !connection.closing) connection.refuse(why);
  }
}

void Service::let_host_leave() {
  if (!host_leave_) return;
  Peer* host = nullptr;
  for (auto& connection : connections()) {
    if (connection.rank > 0 && !connection.left) return;
    if (connection.rank == 0) host = &connection;
  }
  if (host) host->send({Message::value, *host_leave_});
  host_leave_.reset();
}

void Service::part_from(Peer& gone) {
  keys_.forget(&gone);
  if (!gone.admitted() || gone.left || gone.closing) return;
  if (gathering_) return fail_all(roster_.gone(gone.rank, gone.reason));
  const std::string why = fmt::format("{} ({})", gone.reason, roster_.who(gone.rank));
  if (!first_loss_) {
    first_loss_ =
        Refusal{ErrorKind::peer, {.what = fmt::format("rank {} was lost", gone.rank), .got = why}};
  }
  tell_others(gone, {Message::lost, static_cast<uint64_t>(gone.rank), "", why});
  for (const auto& [peer, call] : keys_.take_waiting()) {
    peer->send({Message::failed, call, "", to_json(*first_loss_)});
  }
}

void Service::finish(bool bye) {
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
