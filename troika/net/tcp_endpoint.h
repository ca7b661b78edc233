// An Endpoint over TCP sockets whose both ends have proved that they hold the run's secret.
//
// A thread that waits in run_until() moves all messages on, of whatever thread; while none does, a
// thread of the endpoint does. So a round trip costs no change of threads, and messages move beside
// computation; they may rest for up to 2 ms after a thread has stopped waiting.
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
  std::string name;  // of 1 to 255 bytes, unlike that of any other endpoint of the run
  Secret secret;     // who holds it may connect as any name
  // Protects what follows the handshake; a peer with another one is refused.
  Protection protection = Protection::encrypted;
  // Data sockets of a connection that this endpoint makes, 1 to kMostStreams. With more than one, a
  // socket more carries what is not a long message's data.
  int streams = 1;
  // Numeric addresses of this machine, IPv4 or IPv6 (interface_address() finds an interface's);
  // "": all of them; none: it only connects to others. Port 0 takes any.
  std::vector<Address> listen = {{"", 0}};
  // More of them are refused. Each costs descriptors, and at most kCreditWindow bytes for messages
  // that nobody takes, one message for a handler, and about 1 MiB a socket.
  size_t most_peers = 4096;
  GateLimits limits = {};
};

// A peer's end is told within milliseconds when its process ends or closes; within 26 s when its
// machine or the network vanishes (see tune()); not while its process is only stopped, which the
// deadlines of who waits are for.
class TcpEndpoint : public Endpoint {
 public:
  // `listeners` are open already, beside those of the options. Throws Error(net, usage) for options
  // that make no sense or a port that is taken.
  explicit TcpEndpoint(TcpOptions options, std::vector<Descriptor> listeners = {});
  // Sends what waits, at most for a second, and tells the peers that it leaves. Callbacks may run
  // until it returns.
  ~TcpEndpoint() override;

  // Where it listens, with its ports, in the order of the options; without `listeners`.
  const std::vector<Address>& addresses() const { return addresses_; }

  // Blocks until the two are connected, by this connection or the peer's own. At once where they
  // are. Tries the addresses in turn, again and again, until one answers. Throws Error(net):
  // `timeout` past the deadline, telling why the last attempt at each address failed; `usage` when
  // the peer refused. Not for callbacks.
  void connect(const std::string& peer, const std::vector<Address>& addresses, Deadline deadline);
  // The same in one attempt at one address, proving `secret` instead of the endpoint's own; how it
  // failed, where it did. Throws Error(net, usage) when the peer refused.
  std::optional<DialFailure> try_connect(const std::string& peer, const Address& address,
                                         const Secret& secret, const DialPatience& patience);

  // Whether a message of the channel is here for which no receive was posted. Only for callbacks,
  // as what run_until() asks.
  bool has_message(const std::string& peer, Channel channel);

  // While `has_room` says no, nobody is accepted. It runs under the rules for callbacks.
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
