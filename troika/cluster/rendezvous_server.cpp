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
#include "troika/cluster/members.h"
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
  Service(net::Descriptor listener, net::ServerHandshake handshake, Roster roster, RelayRules rules)
      : PeerServer(std::move(listener), std::move(handshake)),
        roster_(std::move(roster)),
        plan_(rules),
        members_(roster_.world_size()),
        inquiries_([this](const std::vector<int>& ranks, const Frame& frame) {
          members_.send(ranks, encode(frame));
        }) {}

  void finish(bool bye);

 private:
  void handle(Peer& from, const Frame& frame) override;
  void part_from(Peer& gone) override;
  void before_flush() override;
  std::optional<Deadline> deadline() const override;
  void late() override;

  void greet(Peer& from, const Frame& frame);
  void handle_relayed(Peer& relay, const Frame& frame);
  void handle_rank(int rank, const Frame& frame);
  void admit(Peer& way, const Hello& hello);
  void take_back(Peer& way, int rank);
  void lose(int rank, const std::string& reason);

  void set(const std::string& key, const std::string& value);
  void get(int rank, const Frame& frame);
  void add(int rank, const Frame& frame);
  void leave(int rank, const Frame& frame);
  // Tells all that are there, at the latest when this much time has passed.
  void announce(const Frame& news, Milliseconds within);
  void send_news();
  void fail_all(const Refusal& why);

  Roster roster_;
  RelayPlan plan_;
  Members members_;
  bool gathering_ = true;
  std::optional<Refusal> failed_;
  KeyStore keys_;
  std::optional<Refusal> first_loss_;
  std::optional<uint64_t> host_leave_;  // rank 0's call, answered when it is the last
  std::string news_;                    // frames for all that are there
  std::string old_news_;                // the frames before, for those that come back
  Deadline news_due_ = Deadline::after(Milliseconds(0));
  Inquiries inquiries_;
};

std::optional<Deadline> Service::deadline() const {
  std::optional<Deadline> first;
  const auto consider = [&](const std::optional<Deadline>& other) {
    if (other && (!first || *other < *first)) first = other;
  };
  consider(gathering_ ? roster_.deadline() : inquiries_.deadline());
  consider(members_.deadline());
  if (!news_.empty()) consider(news_due_);
  return first;
}

void Service::late() {
  if (gathering_ && roster_.deadline() && roster_.deadline()->passed()) {
    return fail_all(roster_.late(unwelcome()));
  }
  for (const int rank : members_.overdue()) {
    lose(rank, "it has not come back since the rank that relayed for it ended");
  }
  if (!gathering_) inquiries_.proceed();
}

void Service::handle(Peer& from, const Frame& frame) {
  if (from.relays) return handle_relayed(from, frame);
  if (from.admitted()) return handle_rank(from.rank, frame);
  if (frame.message == Message::hello) return greet(from, frame);
  from.ended = true;
}

void Service::greet(Peer& from, const Frame& frame) {
  const auto hello = hello_from_json(frame.value);
  if (!hello) {
    from.ended = true;
    return;
  }
  if (failed_) return from.refuse(*failed_);
  const bool is_ours = hello->rank > 0 && hello->rank < roster_.world_size();
  if (hello->direct && is_ours && members_.can_come_back(hello->rank)) {
    return take_back(from, hello->rank);
  }
  if (const auto verdict = roster_.objection(*hello)) {
    from.refuse(verdict->refusal);
    if (verdict->for_all) fail_all(verdict->refusal);
    return;
  }
  const auto place = plan_.place(*hello);
  switch (place.role) {
    case RelayPlan::Role::direct:
      from.rank = hello->rank;
      return admit(from, *hello);
    case RelayPlan::Role::relay:
      from.rank = hello->rank;
      from.relays = true;
      return from.send({Message::relay});
    case RelayPlan::Role::through:
      // It ends this connection when it is there, and says hello here again when it cannot.
      from.send({Message::go, static_cast<uint64_t>(place.port), "", std::to_string(place.relay)});
  }
}

void Service::admit(Peer& way, const Hello& hello) {
  roster_.enter(hello);
  members_.enter(hello.rank, way);
  inquiries_.arrived(hello.rank);
  if (!roster_.complete()) return;
  gathering_ = false;
  // A relay passes it on to its ranks.
  const Frame welcome{Message::welcome, 0, "", members_.relays()};
  for (auto& connection : connections()) {
    if (connection.admitted()) connection.send(welcome);
  }
}

// Its relay has ended, or is about to.
void Service::take_back(Peer& way, int rank) {
  way.rank = rank;
  members_.enter(rank, way);
  inquiries_.arrived(rank);
  if (gathering_) return;
  way.send({Message::welcome, 0, "", members_.relays()});
  if (!old_news_.empty()) way.send_encoded(old_news_);
}

void Service::handle_relayed(Peer& relay, const Frame& frame) {
  const int rank = static_cast<int>(frame.number);
  if (frame.number >= static_cast<uint64_t>(roster_.world_size())) {
    return relay.end("it relays for a rank that does not exist");
  }
  if (frame.message == Message::parted) {
    if (members_.goes_through(rank, relay)) lose(rank, frame.value);
    return;
  }
  Decoder decoder;
  decoder.feed(frame.value);
  const auto said = decoder.next();
  if (frame.message != Message::relayed || !said) return relay.end("it sent what no relay sends");
  if (said->message != Message::hello) {
    if (members_.goes_through(rank, relay)) handle_rank(rank, *said);
    return;
  }
  const auto hello = hello_from_json(said->value);
  if (!hello || hello->rank != rank) return relay.end("it sent what no relay sends");
  if (failed_) {
    return relay.send({Message::refused, 0, "", to_json(*failed_)});
  }
  if (const auto verdict = roster_.objection(*hello)) return fail_all(verdict->refusal);
  admit(relay, *hello);
}

void Service::handle_rank(int rank, const Frame& frame) {
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
      members_.end(rank, frame.value);
      return lose(rank, frame.value);
    default:
      members_.end(rank, "");
      return lose(rank, "it sent what only a server sends");
  }
}

void Service::set(const std::string& key, const std::string& value) {
  for (const auto& [rank, call] : keys_.set(key, value)) {
    members_.send(rank, {Message::value, call, "", value});
  }
}

void Service::get(int rank, const Frame& frame) {
  if (const std::string* value = keys_.find(frame.key)) {
    members_.send(rank, {Message::value, frame.number, "", *value});
  } else if (first_loss_) {
    members_.send(rank, {Message::failed, frame.number, "", to_json(*first_loss_)});
  } else {
    keys_.wait(frame.key, {rank, frame.number});
  }
}

void Service::add(int rank, const Frame& frame) {
  const auto sum = keys_.sum(frame.key, frame.value);
  if (const auto* refusal = std::get_if<Refusal>(&sum)) {
    return members_.send(rank, {Message::failed, frame.number, "", to_json(*refusal)});
  }
  const std::string text = std::to_string(std::get<int64_t>(sum));
  set(frame.key, text);
  members_.send(rank, {Message::value, frame.number, "", text});
}

void Service::leave(int rank, const Frame& frame) {
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

void Service::announce(const Frame& news, Milliseconds within) {
  const auto due = Deadline::after(within);
  if (news_.empty() || due < news_due_) news_due_ = due;
  news_ += encode(news);
}

void Service::send_news() {
  if (!news_.empty()) members_.send(members_.all_there(), news_);
  old_news_ += std::exchange(news_, {});
}

void Service::before_flush() {
  if (!news_.empty() && news_due_.passed()) send_news();
  if (!host_leave_ || members_.others() > 0) return;
  members_.send(0, {Message::value, *host_leave_});
  host_leave_.reset();
}

void Service::fail_all(const Refusal& why) {
  gathering_ = false;
  failed_ = why;
  for (auto& connection : connections()) {
    if (connection.relays) {
      // It passes it on to its ranks, and ends when they have.
      connection.send({Message::refused, 0, "", to_json(why)});
    } else if (connection.talks()) {
      connection.refuse(why);
    }
  }
}

void Service::part_from(Peer& gone) {
  if (!gone.admitted()) return;
  for (const int rank : members_.cut_off(gone)) {
    // The ranks of a relay come back; it is one of them itself.
    if (rank == gone.rank) {
      lose(rank, gone.reason);
    } else {
      inquiries_.gone(rank);
    }
  }
}

void Service::lose(int rank, const std::string& reason) {
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

void Service::finish(bool bye) {
  send_news();
  PeerServer::finish([&](Peer& peer) {
    if (bye && (peer.relays || members_.is_there(peer.rank))) peer.send({Message::bye});
  });
}

}  // namespace

RendezvousServer::RendezvousServer(net::Descriptor listener, net::ServerHandshake handshake,
                                   Roster roster, RelayRules rules)
    : thread_([this, service = std::make_unique<Service>(std::move(listener), std::move(handshake),
                                                         std::move(roster), rules)] {
        service->run(stop_);
        service->finish(bye_);
      }) {}

RendezvousServer::~RendezvousServer() {
  stop_.wake();
  thread_.join();
}

}  // namespace troika::cluster
