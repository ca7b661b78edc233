// An endpoint that counts the bytes of messages and keeps them below a rate: a volunteer's cap on
// bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/swarm/alive.h"
#include "troika/swarm/token_bucket.h"

namespace troika::swarm {

// Bytes of messages per second, above 0. Encryption and TCP add a few percent.
struct BandwidthCap {
  double up = std::numeric_limits<double>::infinity();
  double down = std::numeric_limits<double>::infinity();
};

// Bytes of messages.
struct MeteredTraffic {
  uint64_t sent = 0, received = 0;
};

// Another endpoint with its name. The numbers of averagings and the states of late peers wait until
// the cap allows them: at this endpoint, if it sends them, and at their senders, if it receives
// them, so that at most the credit of each connection (net/frame.h) comes too early. All other
// messages are small; they do not wait, but count.
//
// Sets the listener for peers of the other endpoint, which may still be used for
// other channels. Construct, call and destroy it under Endpoint's rules for callbacks,
// before there are connections.
class MeteredEndpoint : public net::Endpoint {
 public:
  // `inner` must outlive it.
  MeteredEndpoint(net::Endpoint& inner, const BandwidthCap& cap);
  // Messages that wait to be sent are lost.
  ~MeteredEndpoint() override;

  const MeteredTraffic& traffic() const { return traffic_; }
  // Whether numbers of averagings wait to be sent, here or at the other endpoint.
  bool is_sending() const { return sending_ > 0; }

  net::Ticket send(const std::string& peer, net::Channel channel, const net::Pieces& message,
                   net::Priority priority, net::Completion completion) override;
  net::Ticket receive(const std::string& peer, net::Channel channel, std::span<char> buffer,
                      net::Completion completion) override;
  void handle(net::Channel channel, size_t most, net::Handler handler) override;
  void listen_to_peers(net::PeerListener listener) override { listener_ = std::move(listener); }
  void disconnect(const std::string& peer) override { inner_.disconnect(peer); }
  void part(const std::string& peer, net::Duration at_most) override { inner_.part(peer, at_most); }
  void cancel(net::Ticket ticket, net::Outcome why) override;
  net::Duration now() const override { return inner_.now(); }
  net::Ticket after(net::Duration delay, std::function<void()> timer) override {
    return inner_.after(delay, std::move(timer));
  }
  bool run_until(const std::function<bool()>& is_over, net::Duration at_most) override {
    return inner_.run_until(is_over, at_most);
  }

 private:
  // A message that waits to be sent.
  struct Waiting {
    net::Ticket ticket = 0;
    std::string peer;
    net::Channel channel = 0;
    net::Pieces message;
    net::Priority priority = net::Priority::normal;
    net::Completion completion;
  };
  // A receive at the other endpoint.
  struct Posted {
    std::string buffer = {};
    net::Ticket ticket = 0;
    bool is_open = false;
  };
  // A channel whose messages wait at their senders.
  struct Pull {
    net::Handler handler;
    size_t most = 0;
    std::map<std::string, Posted> posted = {};  // by peer
  };
  struct Flags {
    bool sends_later = false, pulls_later = false;  // a timer is set
    bool is_pulling = false, pulls_again = false;
  };

  void take_change(const net::PeerChange& change);
  // Calls `completion`, too, and counts the message until then.
  net::Completion counted(net::Completion completion);
  void fail_waiting(const std::string& peer, const std::string& reason);
  void send_waiting();
  void count_received(size_t bytes);
  void stop_pulling(net::Channel channel);
  void pull();
  std::vector<std::pair<net::Channel, std::string>> places_to_pull_from() const;
  void post(net::Channel channel, const std::string& peer);
  void take(net::Channel channel, const std::string& peer, const net::Result& result);

  net::Endpoint& inner_;
  TokenBucket up_, down_;
  net::PeerListener listener_;
  std::set<std::string> connected_;
  MeteredTraffic traffic_;
  size_t sending_ = 0;  // messages with numbers of averagings
  std::deque<Waiting> waiting_;
  std::map<net::Ticket, net::Ticket>
      late_;  // of messages that have waited -> at the other endpoint
  net::Ticket last_ticket_ = 0;
  std::map<net::Channel, Pull> pulls_;
  Flags flags_;
  Alive alive_;
};

}  // namespace troika::swarm
