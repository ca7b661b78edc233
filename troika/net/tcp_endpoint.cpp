#include "troika/net/tcp_endpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "troika/base/error.h"
#include "troika/net/local_socket.h"
#include "troika/net/socket.h"

namespace troika::net {

namespace {

constexpr Milliseconds kLeaveTime{1000};
// The pause between attempts to connect.
constexpr Milliseconds kFirstRest{10};
constexpr Milliseconds kLongestRest{200};

std::string show(const Address& address) {
  return address.host.find(':') == std::string::npos
             ? fmt::format("{}:{}", address.host, address.port)
             : fmt::format("[{}]:{}", address.host, address.port);
}

void require(bool is_good, const std::string& what, const std::string& got,
             const std::string& expected) {
  if (is_good) return;
  throw Error("net", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
}

uint64_t random_number() {
  uint64_t number = 0;
  const Secret secret = Secret::random();
  for (size_t i = 0; i < sizeof(number); ++i) number = number << 8 | secret.data()[i];
  return number;
}

}  // namespace

TcpEndpoint::TcpEndpoint(TcpOptions options, std::vector<Descriptor> listeners)
    : Endpoint(options.name), options_(std::move(options)), reactor_(options_.polls) {
  require(!name().empty() && name().size() <= kMostName, "an endpoint has no such name",
          fmt::format("{} bytes", name().size()), fmt::format("1 to {}", kMostName));
  require(options_.streams >= 1 && options_.streams <= kMostStreams,
          "an endpoint has no such number of streams", fmt::format("{}", options_.streams),
          fmt::format("1 to {}", kMostStreams));
  open_listeners(listeners);
  std::vector<std::string> names{name()};
  if (!options_.alias.empty()) names.push_back(options_.alias);
  gate_ = std::make_unique<Gate>(reactor_.poller(), options_.secret, names, std::move(listeners),
                                 options_.limits,
                                 [this](Arrival arrival) { admit(std::move(arrival)); });
  gate_->accept_while(options_.accepts);
  reactor_.start({[this] { return gate_->deadline(); }, [this] { gate_->expire(); }});
}

TcpEndpoint::~TcpEndpoint() {
  leave();
  reactor_.stop();
}

void TcpEndpoint::open_listeners(std::vector<Descriptor>& listeners) {
  for (const Address& address : options_.listen) {
    int error = 0;
    auto listener = listen_at(address.host, address.port, error);
    require(static_cast<bool>(listener),
            fmt::format("cannot listen at port {} of {}", address.port,
                        address.host.empty() ? "all addresses" : address.host),
            system_reason(error), "an address of this machine and a free port");
    addresses_.push_back({address.host, port_of(listener)});
    listeners.push_back(std::move(listener));
    if (auto local = listen_locally(addresses_.back().port)) listeners.push_back(std::move(local));
  }
}

PeerLink* TcpEndpoint::find(const std::string& peer) {
  const auto found = links_.find(peer);
  return found == links_.end() ? nullptr : found->second.get();
}

PeerLink& TcpEndpoint::link_to(const std::string& peer) {
  auto& link = links_[peer];
  if (!link) {
    link = std::make_unique<PeerLink>(peer, reactor_.poller(), handlers_,
                                      [this](const PeerChange& change) {
                                        // A copy, because the listener may replace itself.
                                        if (const auto listener = listener_) listener(change);
                                      });
  }
  return *link;
}

HelloReply TcpEndpoint::judge(const Hello& hello) {
  if (hello.name == name()) return {Verdict::refused, "it has this endpoint's own name"};
  if (hello.protection != options_.protection) {
    return {Verdict::refused,
            fmt::format("protection {} where {} has {}", net::name(hello.protection), name(),
                        net::name(options_.protection))};
  }
  if (links_.size() >= options_.most_peers) {
    std::erase_if(links_, [](const auto& link) { return link.second->is_over(); });
  }
  if (!find(hello.name) && links_.size() >= options_.most_peers) {
    return {Verdict::refused, fmt::format("{} has {} peers already", name(), links_.size())};
  }
  // When two endpoints connect to each other at the same time, the connection made by the one with
  // the lesser name is kept.
  if (dialing_.contains(hello.name) && name() < hello.name) return {Verdict::busy};
  const PeerLink& link = link_to(hello.name);
  return {link.misses({hello.attempt, hello.sockets}, hello.socket) ? Verdict::welcome
                                                                    : Verdict::busy};
}

void TcpEndpoint::admit(Arrival arrival) {
  const Hello& hello = arrival.hello;
  const HelloReply reply = judge(hello);
  const std::string record = arrival.session.sealer.seal(encode(reply));
  std::string_view unsent = record;
  std::string reason;
  // The send buffer of a new socket has room for it. If not, closing the connection is the answer.
  const bool is_sent = send_some(arrival.socket.get(), unsent, reason) && unsent.empty();
  if (!is_sent || reply.verdict != Verdict::welcome) return;
  link_to(hello.name)
      .adopt({hello.attempt, hello.sockets}, hello.socket, std::move(arrival.socket), arrival.keys,
             options_.protection);
}

bool TcpEndpoint::has_begun(const std::string& peer) {
  const Reactor::Hold hold(reactor_);
  const PeerLink* link = find(peer);
  return link && link->has_begun();
}

void TcpEndpoint::connect(const std::string& peer, const std::vector<Address>& addresses,
                          Deadline deadline) {
  require(peer != name(), "an endpoint cannot connect to itself", peer, "another name");
  TROIKA_CHECK(!addresses.empty(), "a peer is connected to at an address");
  const auto is_up = [&] {
    const PeerLink* link = find(peer);
    return link && link->is_up();
  };
  std::vector<std::string> problems(addresses.size());
  for (Milliseconds rest = kFirstRest;; rest = std::min(2 * rest, kLongestRest)) {
    for (size_t i = 0; i < addresses.size() && !has_begun(peer); ++i) {
      const auto share = deadline.left() / static_cast<int>(addresses.size() - i);
      const auto failure =
          try_connect(peer, addresses[i], options_.secret, {Deadline::after(share)});
      if (!failure) return;
      if (failure->kind == DialFailure::Kind::busy) break;
      // A failure due to our own deadline says less than the previous failure.
      if (deadline.passed() && !problems[i].empty()) continue;
      problems[i] = fmt::format("{}: {}", show(addresses[i]), describe(*failure));
    }
    // Waits for a listener that does not exist yet, or for the peer's own connection.
    if (run_until(is_up, std::min<Duration>(rest, deadline.left()))) return;
    if (!deadline.passed()) continue;
    std::erase(problems, "");
    if (problems.empty()) problems.push_back("another connection that was not complete");
    throw Error("net", ErrorKind::timeout,
                {.what = fmt::format("could not connect to {} in time", peer),
                 .got = fmt::format("{}", fmt::join(problems, "; "))});
  }
}

std::optional<DialFailure> TcpEndpoint::try_connect(const std::string& peer, const Address& address,
                                                    const Secret& secret,
                                                    const DialPatience& patience) {
  const auto entry = [&] {
    const Reactor::Hold hold(reactor_);
    return dialing_.insert(peer);
  }();
  struct Undo {
    std::function<void()> undo;
    ~Undo() { undo(); }
  };
  const Undo undo{[&] {
    const Reactor::Hold hold(reactor_);
    dialing_.erase(entry);
  }};
  const PairId pair{random_number(), options_.streams == 1 ? 1 : options_.streams + 1};
  Hello hello{name(), pair.attempt, options_.protection, 0, pair.sockets};
  std::vector<Dialed> sockets;
  for (; hello.socket < pair.sockets; ++hello.socket) {
    auto result = dial(peer, address, secret, hello, patience);
    if (const auto* failure = std::get_if<DialFailure>(&result)) return *failure;
    sockets.push_back(std::get<Dialed>(std::move(result)));
  }
  const Reactor::Hold hold(reactor_);
  PeerLink& link = link_to(peer);
  if (link.has_begun()) return DialFailure{DialFailure::Kind::busy, "the peer's own connection"};
  for (int i = 0; i < pair.sockets; ++i) {
    auto& dialed = sockets[static_cast<size_t>(i)];
    link.adopt(pair, i, std::move(dialed.socket), dialed.keys, options_.protection);
  }
  return std::nullopt;
}

bool TcpEndpoint::has_message(const std::string& peer, Channel channel) {
  const Reactor::Hold hold(reactor_);
  const PeerLink* link = find(peer);
  return link && link->has_message(channel);
}

void TcpEndpoint::hold_sends(const std::string& peer) {
  const Reactor::Hold hold(reactor_);
  link_to(peer).hold_sends();
}

void TcpEndpoint::release_sends(const std::string& peer) {
  const Reactor::Hold hold(reactor_);
  link_to(peer).release_sends();
}

void TcpEndpoint::accept_while(std::function<bool()> has_room) {
  const Reactor::Hold hold(reactor_);
  gate_->accept_while(std::move(has_room));
}

void TcpEndpoint::stop_listening() {
  const Reactor::Hold hold(reactor_);
  gate_->close();
}

Unwelcome TcpEndpoint::unwelcome() {
  const Reactor::Hold hold(reactor_);
  return gate_->unwelcome();
}

void TcpEndpoint::disconnect(const std::string& peer) {
  const Reactor::Hold hold(reactor_);
  PeerLink* link = find(peer);
  if (!link) return;
  link->say_bye();
  link->end("it was disconnected");
}

void TcpEndpoint::part(const std::string& peer, Duration at_most) {
  const Reactor::Hold hold(reactor_);
  PeerLink* link = find(peer);
  if (!link || !link->is_up()) return disconnect(peer);
  const PairId pair = link->part();
  reactor_.add_timer(++last_ticket_, at_most, [this, peer, pair] {
    PeerLink* late = find(peer);
    if (late && late->is_of(pair)) late->end("it did not end its side");
  });
}

Ticket TcpEndpoint::send(const std::string& peer, Channel channel, const Pieces& message,
                         Priority priority, Completion completion) {
  const Reactor::Hold hold(reactor_);
  const Ticket ticket = ++last_ticket_;
  PeerLink* link = find(peer);
  if (link && link->takes_messages()) {
    link->send(std::make_shared<Outgoing>(
        Outgoing{ticket, channel, message, priority, std::move(completion)}));
  } else if (completion) {
    completion({.outcome = Outcome::lost, .reason = fmt::format("{} is not connected", peer)});
  }
  return ticket;
}

Ticket TcpEndpoint::receive(const std::string& peer, Channel channel, std::span<char> buffer,
                            Completion completion) {
  const Reactor::Hold hold(reactor_);
  const Ticket ticket = ++last_ticket_;
  if (PeerLink* link = find(peer)) {
    link->post(channel, {ticket, buffer, std::move(completion)});
  } else if (completion) {
    completion({.outcome = Outcome::lost, .reason = fmt::format("{} is not connected", peer)});
  }
  return ticket;
}

void TcpEndpoint::handle(Channel channel, size_t most, Handler handler) {
  const Reactor::Hold hold(reactor_);
  if (!handler) {
    handlers_.erase(channel);
    return;
  }
  handlers_[channel] = {most, std::move(handler)};
  std::vector<PeerLink*> links;
  for (const auto& [peer, link] : links_) links.push_back(link.get());
  for (PeerLink* link : links) link->serve(channel);
}

void TcpEndpoint::listen_to_peers(PeerListener listener) {
  const Reactor::Hold hold(reactor_);
  listener_ = std::move(listener);
}

void TcpEndpoint::cancel(Ticket ticket, Outcome why) {
  const Reactor::Hold hold(reactor_);
  if (reactor_.cancel_timer(ticket)) return;
  std::vector<PeerLink*> links;
  for (const auto& [peer, link] : links_) links.push_back(link.get());
  for (PeerLink* link : links) {
    if (link->cancel(ticket, why)) return;
  }
}

Duration TcpEndpoint::now() const {
  return Clock::now().time_since_epoch();
}

Ticket TcpEndpoint::after(Duration delay, std::function<void()> timer) {
  const Reactor::Hold hold(reactor_);
  reactor_.add_timer(++last_ticket_, delay, std::move(timer));
  return last_ticket_;
}

bool TcpEndpoint::run_until(const std::function<bool()>& is_over, Duration at_most) {
  return reactor_.run_until(is_over, at_most);
}

void TcpEndpoint::leave() {
  const auto deadline = Deadline::after(kLeaveTime);
  const auto until_all = [&](const auto& is_done) {
    run_until(
        [&] {
          return std::ranges::all_of(links_, [&](const auto& l) { return is_done(*l.second); });
        },
        deadline.left());
  };
  {
    const Reactor::Hold hold(reactor_);
    gate_->close();
  }
  until_all([](const PeerLink& link) { return link.is_silent(); });
  {
    const Reactor::Hold hold(reactor_);
    for (const auto& [peer, link] : links_) link->say_bye();
  }
  // Closing a socket with unread bytes resets the connection, which may discard bytes sent before.
  until_all([](const PeerLink& link) { return !link.has_begun(); });
}

}  // namespace troika::net
