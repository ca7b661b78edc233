// A rank's end of its connection to rank 0's server, straight or through a relay of its machine,
// and the relay that this rank is, if it is one.
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
#include "troika/cluster/relay.h"
#include "troika/cluster/run_secret.h"
#include "troika/cluster/wire.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cluster {

// post() and wake() may be called by any thread, also by callbacks; all else belongs to the thread
// that reads.
class Line {
 public:
  struct Options {
    std::string server;  // the name of the server's endpoint
    int world_size = 1;
    bool may_relay = false;
  };
  Line(const Options& options, const RunSecret& secret);
  // A relay waits for its ranks to end, at most a second; the others come back to rank 0's server.
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // One attempt to reach an endpoint of that name, with which this rank talks from then on instead
  // of another; how it failed, where it did.
  std::optional<net::DialFailure> go_to(const std::string& peer, const net::Address& address,
                                        const net::Secret& secret, Deadline deadline);
  // Where other ranks reach the relay that this rank may be; 0: it may not.
  int relay_port() const;
  void relay_for_nobody();

  // From now on each frame is first given to `sink`, under the rules for callbacks of
  // net::Endpoint; next() gives those that it returns false for. Ended by an empty one.
  using Sink = std::function<bool(const Frame& frame)>;
  void give_to(Sink sink);

  // Never blocks: what the socket does not take now is sent later.
  void post(std::string frames);
  // Ends a wait of next().
  void wake();
  // The next frame; nothing when there is none until the deadline or wake(), or the connection has
  // ended. Blocks.
  std::optional<Frame> next(Deadline deadline);
  // How the connection has ended; nothing while frames may come.
  std::optional<std::string> ended();

 private:
  void take(const std::string& peer, const std::string& message);
  void note(const net::PeerChange& change);
  // The caller holds mutex_.
  const std::string* end_of_peer() const;

  const std::string server_;

  std::mutex mutex_;  // guards these; callbacks hold it only for as long as they change them
  std::condition_variable changed_;
  std::string peer_;                         // that this rank talks with
  std::deque<Frame> frames_;                 // from it
  std::map<std::string, std::string> ends_;  // by peer: how its connection has ended
  bool is_woken_ = false;
  bool has_told_end_ = false;

  // These belong to the endpoint's callbacks.
  Sink sink_;
  std::unique_ptr<Relay> relay_;  // null: it passes nothing on

  net::TcpEndpoint endpoint_;  // whose callbacks run until it is gone
};

}  // namespace troika::cluster
