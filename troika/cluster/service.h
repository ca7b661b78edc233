// The base of this room's servers: it knows who is connected to an endpoint, and takes whole frames
// from those that talk. The derived class knows what frames mean.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "troika/cluster/wire.h"
#include "troika/net/endpoint.h"

namespace troika::cluster {

// All state belongs to the endpoint's callbacks: everything is called by them, or through
// net::act_on().
class Service {
 public:
  struct Peer {
    std::string name;
    net::Duration patience{};  // when it is no longer waited for, unless it was admitted
    int rank = -1;             // once admitted
    bool relays = false;       // it also says what other ranks say
    bool closing = false;      // nothing it says counts any more
    std::string reason = {};   // why this end ended the connection

    bool admitted() const { return rank >= 0; }
  };

  explicit Service(net::Endpoint& endpoint) : endpoint_(endpoint) {}
  // stop() came before, if start() did.
  virtual ~Service() = default;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Takes the frames of peers.
  void start();
  // Ends the connections of all that are admitted; the others may still be refused.
  void close_all();
  bool is_alone() const { return peers_.empty(); }
  // Ends what connections are left, and hears of nothing any more.
  void stop();
  // To be told what the endpoint's listener is told.
  void note(const net::PeerChange& change);
  // Whether few enough have connected and are not admitted yet.
  bool has_room() const;

  // One frame or several to one that talks. They go as one message with what else is sent to it
  // until the endpoint has called back for all that it has read.
  void send(const Peer& to, const Frame& frame) { send(to, encode(frame)); }
  void send(const Peer& to, std::string_view frames);
  // The last frame it gets: what it says from now on counts no more.
  void refuse(Peer& to, const Refusal& why);
  // Ends the connection when what was sent has arrived.
  void close(Peer& peer);
  // Ends it soon, without sending more; part_from() follows.
  void end(Peer& peer, const std::string& why);

 protected:
  // An Error that it throws ends the connection.
  virtual void handle(Peer& from, const Frame& frame) = 0;
  // Already out of the peers.
  virtual void part_from(Peer& gone) = 0;
  // After each event.
  virtual void settle() {}
  // When late() is to be called, by the endpoint's clock; nothing: never.
  virtual std::optional<net::Duration> due() const { return std::nullopt; }
  virtual void late() {}

  // The same to any peer of the endpoint.
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
  std::map<std::pair<std::string, net::Channel>, std::string> out_;  // frames
  net::Ticket flush_ = 0;                                            // the timer for them
};

}  // namespace troika::cluster
