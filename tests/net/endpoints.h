// Options of endpoints for tests, and handles to messages in flight.
#pragma once

#include <gmock/gmock.h>

#include <optional>
#include <string>

#include "troika/base/random.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::net {

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}
inline constexpr std::chrono::seconds kSoon{30};

inline TcpOptions options_for(const std::string& name, const Secret& secret) {
  return {.name = name, .secret = secret, .listen = {{"127.0.0.1", 0}}};
}

inline std::string random_text(size_t size, uint64_t seed) {
  Random random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// A posted receive.
class Receipt {
 public:
  Receipt(Endpoint& endpoint, const std::string& peer, Channel channel, size_t room)
      : endpoint_(endpoint), buffer_(room, '?') {
    ticket_ = endpoint.receive(peer, channel, buffer_,
                               [this](const Result& result) { result_ = result; });
  }
  ~Receipt() { endpoint_.cancel(ticket_, Outcome::cancelled); }
  Receipt(const Receipt&) = delete;
  Receipt& operator=(const Receipt&) = delete;

  Result wait() {
    EXPECT_TRUE(endpoint_.run_until([this] { return result_.has_value(); }, kSoon));
    return result_.value_or(Result{Outcome::timeout});
  }
  // Returns the message.
  std::string text() {
    const Result result = wait();
    EXPECT_EQ(result.outcome, Outcome::done) << result.reason;
    return buffer_.substr(0, result.bytes);
  }
  bool is_over() {
    bool over = false;
    endpoint_.run_until(
        [&] {
          over = result_.has_value();
          return true;
        },
        Duration(0));
    return over;
  }
  Ticket ticket() const { return ticket_; }

 private:
  Endpoint& endpoint_;
  std::string buffer_;
  std::optional<Result> result_;
  Ticket ticket_ = 0;
};

// Waits for a change that the endpoint reports to its listener. Replaces the endpoint's listener.
class Watch {
 public:
  explicit Watch(Endpoint& endpoint) : endpoint_(endpoint) {
    endpoint.listen_to_peers([this](const PeerChange& change) { changes_.push_back(change); });
  }
  ~Watch() { endpoint_.listen_to_peers({}); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool wait(const std::string& peer, bool is_up, size_t times = 1) {
    return endpoint_.run_until([&] { return count(peer, is_up) >= times; }, kSoon);
  }
  std::string reason(const std::string& peer) {
    std::string reason;
    endpoint_.run_until(
        [&] {
          for (const auto& change : changes_) {
            if (change.peer == peer && !change.is_up) reason = change.reason;
          }
          return true;
        },
        Duration(0));
    return reason;
  }

 private:
  size_t count(const std::string& peer, bool is_up) const {
    return static_cast<size_t>(std::ranges::count_if(
        changes_, [&](const PeerChange& c) { return c.peer == peer && c.is_up == is_up; }));
  }

  Endpoint& endpoint_;
  std::vector<PeerChange> changes_;
};

}  // namespace troika::net
