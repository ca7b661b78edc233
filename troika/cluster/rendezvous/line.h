// A rank's side of its connection to rank 0's server, direct or through a relay on its machine.
// Also contains the relay, if this rank is one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/relay.h"
#include "troika/cluster/rendezvous/wire.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cluster {

// Any thread and any callback may call post() and wake(). The other functions belong to the reading
// thread.
class Line {
 public:
  struct Options {
    std::string server;  // the endpoint name of the server
    int world_size = 1;
    bool may_relay = false;
  };
  Line(const Options& options, const RunSecret& secret);
  // A relay waits up to a second for its ranks to end; the remaining ones reconnect to rank 0's
  // server.
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // Makes one attempt to connect to the endpoint `peer`. On success, `peer` replaces the previous
  // peer. Returns the failure, or nullopt on success.
  std::optional<net::DialFailure> go_to(const std::string& peer, const net::Address& address,
                                        const net::Secret& secret, Deadline deadline);
  // The port on which other ranks reach this rank's relay; 0 if this rank may not relay.
  int relay_port() const;
  void relay_for_nobody();

  // From now on passes each frame first to `sink`, under the rules for callbacks of net::Endpoint.
  // next() returns only frames for which `sink` returned false. An empty sink ends this.
  using Sink = std::function<bool(const Frame& frame)>;
  void give_to(Sink sink);

  // Sends frames. Never blocks: frames that the socket does not accept now are sent later.
  void post(std::string frames);
  // Ends a wait in next().
  void wake();
  // Blocks until the next frame. Returns nullopt on the deadline, after wake(), or when the
  // connection has ended.
  std::optional<Frame> next(Deadline deadline);
  // Why the connection has ended; nullopt while frames may still come.
  std::optional<std::string> ended();

 private:
  void take(const std::string& peer, const std::string& message);
  void note(const net::PeerChange& change);
  // The caller must hold mutex_.
  const std::string* end_of_peer() const;

  const std::string server_;

  std::mutex mutex_;  // guards the members below; callbacks hold it only briefly
  std::condition_variable changed_;
  std::string peer_;                         // the current peer
  std::deque<Frame> frames_;                 // from the current peer
  std::map<std::string, std::string> ends_;  // by peer: why its connection has ended
  bool is_woken_ = false;
  bool has_told_end_ = false;

  // Only for the endpoint's callbacks.
  Sink sink_;
  std::unique_ptr<Relay> relay_;  // null if this rank does not relay

  net::TcpEndpoint endpoint_;  // last member: its callbacks run until it is destroyed
};

}  // namespace troika::cluster
