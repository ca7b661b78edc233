// An endpoint over sockets that keeps copies of the messages that it sends.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "troika/net/tcp_endpoint.h"

namespace troika::server {

struct Recorded {
  std::string from, to;
  net::Channel channel = 0;
  std::string message;
};

// Thread-safe.
class Recording {
 public:
  void add(Recorded recorded) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(recorded));
  }
  std::vector<Recorded> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(all_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Recorded> all_;
};

// `recording` must outlive it.
class RecordingEndpoint : public net::Endpoint {
 public:
  RecordingEndpoint(const net::TcpOptions& options, Recording& recording)
      : Endpoint(options.name), inner_(options), recording_(recording) {}

  void connect(const RecordingEndpoint& peer, Deadline deadline) {
    inner_.connect(peer.name(), peer.inner_.addresses(), deadline);
  }

  net::Ticket send(const std::string& peer, net::Channel channel, const net::Pieces& message,
                   net::Priority priority, net::Completion completion) override {
    Recorded recorded{name(), peer, channel, {}};
    message.slice(0, message.bytes(), [&](std::string_view part) { recorded.message += part; });
    recording_.add(std::move(recorded));
    return inner_.send(peer, channel, message, priority, std::move(completion));
  }
  net::Ticket receive(const std::string& peer, net::Channel channel, std::span<char> buffer,
                      net::Completion completion) override {
    return inner_.receive(peer, channel, buffer, std::move(completion));
  }
  void handle(net::Channel channel, size_t most, net::Handler handler) override {
    inner_.handle(channel, most, std::move(handler));
  }
  void listen_to_peers(net::PeerListener listener) override {
    inner_.listen_to_peers(std::move(listener));
  }
  void disconnect(const std::string& peer) override { inner_.disconnect(peer); }
  void part(const std::string& peer, net::Duration at_most) override { inner_.part(peer, at_most); }
  void cancel(net::Ticket ticket, net::Outcome why) override { inner_.cancel(ticket, why); }
  net::Duration now() const override { return inner_.now(); }
  net::Ticket after(net::Duration delay, std::function<void()> timer) override {
    return inner_.after(delay, std::move(timer));
  }
  bool run_until(const std::function<bool()>& is_over, net::Duration at_most) override {
    return inner_.run_until(is_over, at_most);
  }

 private:
  net::TcpEndpoint inner_;
  Recording& recording_;
};

}  // namespace troika::server
