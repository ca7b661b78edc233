// Base class of the servers of troika/cluster. It tracks the peers of an endpoint and receives
// their frames. Derived classes interpret the frames.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "troika/cluster/rendezvous/wire.h"
#include "troika/net/endpoint.h"

namespace troika::cluster {

// Not thread-safe: call it only from the endpoint's callbacks or through net::act_on().
class Service {
 public:
  struct Peer {
    std::string name;
    net::Duration patience{};  // deadline for its admission
    int rank = -1;             // set on admission
    bool relays = false;       // also forwards other ranks' frames
    bool closing = false;      // its further frames are ignored
    std::string reason = {};   // why this end closed the connection

    bool admitted() const { return rank >= 0; }
  };

  explicit Service(net::Endpoint& endpoint) : endpoint_(endpoint) {}
  // If start() was called, stop() must be called before.
  virtual ~Service() = default;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Starts receiving frames from peers.
  void start();
  // Closes the connections of all admitted peers. The others can still be refused.
  void close_all();
  bool is_alone() const { return peers_.empty(); }
  // Ends the remaining connections and stops receiving.
  void stop();
  // Must be called with each PeerChange of the endpoint.
  void note(const net::PeerChange& change);
  // Whether another connection may be accepted: few enough are waiting for admission.
  bool has_room() const;

  // Sends one or several frames to a connected peer. They are collected into one message with other
  // frames to this peer until the endpoint has processed all that it has read.
  void send(const Peer& to, const Frame& frame) { send(to, encode(frame)); }
  void send(const Peer& to, std::string_view frames);
  // Sends a refusal as the last frame and closes the connection. Later frames from the peer are
  // ignored.
  void refuse(Peer& to, const Refusal& why);
  // Closes the connection after pending frames have arrived.
  void close(Peer& peer);
  // Ends the connection soon and sends no further frames. part_from() follows.
  void end(Peer& peer, const std::string& why);

 protected:
  // Handles a frame. Throwing Error ends the connection.
  virtual void handle(Peer& from, const Frame& frame) = 0;
  // Called after a peer was removed from peers().
  virtual void part_from(Peer& gone) = 0;
  // Called after each event.
  virtual void after_event() {}
  // When late() must be called, on the endpoint's clock; none: not needed.
  virtual std::optional<net::Duration> due() const { return std::nullopt; }
  virtual void late() {}

  // Like send(), to any peer of the endpoint.
  void post(const std::string& peer, net::Channel channel, std::string_view frames);

  net::Endpoint& endpoint() const { return endpoint_; }
  std::map<std::string, Peer>& peers() { return peers_; }

 private:
  Peer& peer(const std::string& name);
  void take(const std::string& name, const std::string& message);
  void flush();
  void proceed();
  void go_on();
  void set_timer();

  net::Endpoint& endpoint_;
  std::map<std::string, Peer> peers_;  // by name
  std::optional<net::Duration> timer_at_;
  net::Ticket timer_ = 0;
  std::map<std::pair<std::string, net::Channel>, std::string> out_;  // pending frames
  net::Ticket flush_ = 0;                                            // the timer that sends them
};

}  // namespace troika::cluster
