// An Endpoint over TCP sockets. Both ends of each connection have proved that they hold the run's
// secret.
//
// A thread in run_until() moves the messages of all threads; while there is none, the endpoint's
// own thread does. A round trip thus needs no thread switch, and messages move during computation.
// They may pause for up to 2 ms after a thread has left run_until().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "troika/net/dial.h"
#include "troika/net/endpoint.h"
#include "troika/net/frame_cipher.h"
#include "troika/net/gate.h"
#include "troika/net/hello.h"
#include "troika/net/peer_link.h"
#include "troika/net/reactor.h"

namespace troika::net {

struct TcpOptions {
  std::string name;  // 1 to 255 bytes; unique in the run
  Secret secret;     // its holders may connect under any name
  // Protects the frames after the handshake. Peers with another protection are refused.
  Protection protection = Protection::encrypted;
  // Number of data sockets of a connection that this endpoint makes, 1 to kMostStreams. With more
  // than one, an additional socket carries everything but the data of long messages.
  int streams = 1;
  // Numeric IPv4 or IPv6 addresses of this machine (interface_address() finds an interface's). ""
  // is all addresses; port 0 is any free port. With an empty list the endpoint only connects to
  // others.
  std::vector<Address> listen = {{"", 0}};
  // Whether run_until() polls for 50 us before it sleeps. A message then needs no wakeup, but the
  // thread uses a processor meanwhile, which other ranks may need.
  bool polls = true;
  // More peers are refused. Each peer takes descriptors, at most kCreditWindow bytes for unconsumed
  // messages, one message or 32 MiB of messages for handlers, and about 1 MiB per socket.
  size_t most_peers = 4096;
  GateLimits limits = {};
  // Another name, under which others may connect that do not know `name` yet; empty: none.
  std::string alias = {};
  // See accept_while(); empty: connections are accepted from the start.
  std::function<bool()> accepts = {};
};

// Reports the loss of a peer within milliseconds if its process ends or closes the connection, and
// within 26 s if its machine or the network fails (see tune()). A peer whose process is only
// stopped is not reported: use deadlines.
class TcpEndpoint : public Endpoint {
 public:
  // `listeners` are sockets that already listen, in addition to `options.listen`. Throws Error(net,
  // usage) for invalid options or a port in use.
  explicit TcpEndpoint(TcpOptions options, std::vector<Descriptor> listeners = {});
  // Sends pending messages for at most a second and tells the peers that it leaves. Callbacks may
  // run until the destructor returns.
  ~TcpEndpoint() override;

  // The addresses of `options.listen` with their actual ports, in order. Without `listeners`.
  const std::vector<Address>& addresses() const { return addresses_; }

  // Blocks until both are connected, by this call or by the peer. Returns at once if they already
  // are. Tries the addresses in turn, repeatedly. Throws Error(net): `timeout` on the deadline,
  // with the last failure at each address; `usage` if the peer refused. Callbacks must not call it.
  void connect(const std::string& peer, const std::vector<Address>& addresses, Deadline deadline);
  // Makes a single attempt at one address, with `secret` instead of the endpoint's own. Returns the
  // failure, or nullopt on success. Throws Error(net, usage) if the peer refused.
  std::optional<DialFailure> try_connect(const std::string& peer, const Address& address,
                                         const Secret& secret, const DialPatience& patience);

  // Whether an unconsumed message of the channel has arrived. Only for callbacks and the predicate
  // of run_until().
  bool has_message(const std::string& peer, Channel channel);

  // Messages to the peer that are posted between these two calls leave together at the second call,
  // in one system call if they are small. Calls nest. Never block; no callbacks may be awaited in
  // between.
  void hold_sends(const std::string& peer);
  void release_sends(const std::string& peer);

  // Accepts no connections while `has_room` returns false. It runs under the rules for callbacks.
  void accept_while(std::function<bool()> has_room);
  void stop_listening();
  Unwelcome unwelcome();

  Ticket send(const std::string& peer, Channel channel, const Pieces& message, Priority priority,
              Completion completion) override;
  Ticket receive(const std::string& peer, Channel channel, std::span<char> buffer,
                 Completion completion) override;
  void handle(Channel channel, size_t most, Handler handler) override;
  void listen_to_peers(PeerListener listener) override;
  void disconnect(const std::string& peer) override;
  void part(const std::string& peer, Duration at_most) override;
  void cancel(Ticket ticket, Outcome why) override;
  Duration now() const override;
  Ticket after(Duration delay, std::function<void()> timer) override;
  bool run_until(const std::function<bool()>& is_over, Duration at_most) override;

 private:
  PeerLink& link_to(const std::string& peer);
  PeerLink* find(const std::string& peer);
  void open_listeners(std::vector<Descriptor>& listeners);
  void admit(Arrival arrival);
  HelloReply judge(const Hello& hello);
  bool has_begun(const std::string& peer);
  void leave();

  const TcpOptions options_;
  std::vector<Address> addresses_;
  Reactor reactor_;
  Handlers handlers_;
  PeerListener listener_;
  std::unordered_map<std::string, std::unique_ptr<PeerLink>> links_;
  std::multiset<std::string> dialing_;  // peers that threads are connecting to
  Ticket last_ticket_ = 0;
  std::unique_ptr<Gate> gate_;
};

}  // namespace troika::net
