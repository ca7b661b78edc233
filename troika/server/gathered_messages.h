// Small messages that leave together: one message of the endpoint takes as long as many small ones
// of the room. Internal to the room.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "troika/net/endpoint.h"

namespace troika::server {

// Sends like another endpoint, but gathers small messages of one channel between begin() and end().
// It copies these, so their completions run at once.
// Requests and answers never begin with the 8 bytes that mark gathered messages. Messages of the
// channel keep their order. All functions run under the other endpoint's rules for callbacks; that
// endpoint must outlive it.
class GatheringEndpoint : public net::Endpoint {
 public:
  GatheringEndpoint(net::Endpoint& endpoint, net::Channel channel)
      : Endpoint(endpoint.name()), endpoint_(endpoint), channel_(channel) {}

  ~GatheringEndpoint() override;

  void begin() { is_open_ = true; }
  // Whether a message of the channel with so many bytes would be gathered.
  bool gathers(size_t bytes) const { return is_open_ && bytes <= kMostSmall; }
  // Begins, and ends as soon as the messages that have arrived are handled.
  void begin_turn();
  // Sends what was gathered.
  void end();

  net::Ticket send(const std::string& peer, net::Channel channel, const net::Pieces& message,
                   net::Priority priority, net::Completion completion) override;
  net::Ticket receive(const std::string& peer, net::Channel channel, std::span<char> buffer,
                      net::Completion completion) override {
    return endpoint_.receive(peer, channel, buffer, std::move(completion));
  }
  void handle(net::Channel channel, size_t most, net::Handler handler) override {
    endpoint_.handle(channel, most, std::move(handler));
  }
  void listen_to_peers(net::PeerListener listener) override {
    endpoint_.listen_to_peers(std::move(listener));
  }
  void disconnect(const std::string& peer) override { endpoint_.disconnect(peer); }
  void part(const std::string& peer, net::Duration at_most) override {
    endpoint_.part(peer, at_most);
  }
  void cancel(net::Ticket ticket, net::Outcome why) override { endpoint_.cancel(ticket, why); }
  net::Duration now() const override { return endpoint_.now(); }
  net::Ticket after(net::Duration delay, std::function<void()> timer) override {
    return endpoint_.after(delay, std::move(timer));
  }
  bool run_until(const std::function<bool()>& is_over, net::Duration at_most) override {
    return endpoint_.run_until(is_over, at_most);
  }

 private:
  static constexpr size_t kMostSmall = 1024;  // bytes

  void send_gathered(const std::string& peer, std::string& gathered);

  net::Endpoint& endpoint_;
  const net::Channel channel_;
  bool is_open_ = false;
  net::Ticket turn_ = 0;                         // 0: none is under way
  std::map<std::string, std::string> gathered_;  // by peer
};

// Calls `take` with each message that was gathered, or with the message itself. Throws
// Error(server, failure) for gathered messages that end early.
void for_each_message(std::string message, const std::function<void(std::string)>& take);

}  // namespace troika::server
