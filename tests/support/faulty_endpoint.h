// A decorator that treats messages as a bad network does: by a seed, it loses, repeats, delays and
// so reorders them. It can also cut off peers.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "troika/base/random.h"
#include "troika/net/endpoint.h"

namespace troika::test {

// Probabilities for each message that is sent.
struct Faults {
  double drop = 0;       // it never arrives, and the sender does not know
  double duplicate = 0;  // it arrives twice
  double delay = 0;      // it waits for up to `longest_delay`, and others go before
  net::Duration longest_delay = std::chrono::milliseconds(10);
};

// The inner endpoint must outlive this object and the messages that it delays. For endpoints that
// are used by one thread.
class FaultyEndpoint : public net::Endpoint {
 public:
  FaultyEndpoint(net::Endpoint& inner, Faults faults, uint64_t seed)
      : Endpoint(inner.name()), inner_(inner), faults_(faults), random_(seed) {}

  net::Ticket send(const std::string& peer, net::Channel channel, const net::Pieces& message,
                   net::Priority priority, net::Completion completion) override {
    if (cut_.contains(peer)) return fail(std::move(completion));
    const auto copy = std::make_shared<std::string>();
    message.slice(0, message.bytes(), [&](std::string_view part) { copy->append(part); });
    const auto pass_on = [this, peer, channel, priority, copy] {
      inner_.send(peer, channel, std::string_view(*copy), priority, [copy](const net::Result&) {});
    };
    const bool drops = random_.uniform() < faults_.drop;
    const int times = drops ? 0 : random_.uniform() < faults_.duplicate ? 2 : 1;
    for (int i = 0; i < times; ++i) {
      if (random_.uniform() < faults_.delay) {
        const double part = random_.uniform();
        inner_.after(std::chrono::duration_cast<net::Duration>(part * faults_.longest_delay),
                     pass_on);
      } else {
        pass_on();
      }
    }
    return inner_.after(net::Duration(0), [completion = std::move(completion), copy] {
      if (completion) completion({.outcome = net::Outcome::done, .bytes = copy->size()});
    });
  }
  net::Ticket receive(const std::string& peer, net::Channel channel, std::span<char> buffer,
                      net::Completion completion) override {
    if (cut_.contains(peer)) return fail(std::move(completion));
    const net::Ticket ticket = inner_.receive(peer, channel, buffer, std::move(completion));
    receives_.emplace(peer, ticket);
    return ticket;
  }
  void handle(net::Channel channel, size_t most, net::Handler handler) override {
    if (!handler) return inner_.handle(channel, most, {});
    inner_.handle(channel, most,
                  [this, handler = std::move(handler)](const std::string& peer, std::string text) {
                    if (!cut_.contains(peer)) handler(peer, std::move(text));
                  });
  }
  void listen_to_peers(net::PeerListener listener) override {
    listener_ = listener;
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

  // From now on no message passes to or from the peer. This side is notified as if the peer were
  // gone.
  void cut(const std::string& peer) {
    if (!cut_.insert(peer).second) return;
    const auto [begin, end] = receives_.equal_range(peer);
    for (auto entry = begin; entry != end; ++entry)
      inner_.cancel(entry->second, net::Outcome::lost);
    receives_.erase(begin, end);
    if (listener_) listener_({peer, false, "it was cut off"});
  }

 private:
  net::Ticket fail(net::Completion completion) {
    return inner_.after(net::Duration(0), [completion = std::move(completion)] {
      if (completion) completion({.outcome = net::Outcome::lost, .reason = "it was cut off"});
    });
  }

  net::Endpoint& inner_;
  const Faults faults_;
  Random random_;
  net::PeerListener listener_;
  std::set<std::string> cut_;
  std::multimap<std::string, net::Ticket> receives_;  // since the beginning
};

}  // namespace troika::test
