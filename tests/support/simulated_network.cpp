#include "tests/support/simulated_network.h"

#include <algorithm>
#include <cstring>

#include "troika/net/mailbox.h"
#include "troika/net/send_queue.h"

namespace troika::test {

using net::Duration;
using net::Ticket;

class SimulatedEndpoint : public net::Endpoint {
 public:
  SimulatedEndpoint(std::string name, SimulatedNetwork& network)
      : Endpoint(std::move(name)), network_(network) {}

  Ticket send(const std::string& peer, net::Channel channel, const net::Pieces& message,
              net::Priority priority, net::Completion completion) override {
    const Ticket ticket = ++network_.last_ticket_;
    Link& link = link_to(peer);
    if (link.is_up && !link.parts) {
      link.queue.add(std::make_shared<net::Outgoing>(
          net::Outgoing{ticket, channel, message, priority, std::move(completion)}));
      pump_soon(peer);
    } else if (completion) {
      network_.at(now(), [completion = std::move(completion)] {
        completion({.outcome = net::Outcome::lost, .reason = "it is not connected"});
      });
    }
    return ticket;
  }
  Ticket receive(const std::string& peer, net::Channel channel, std::span<char> buffer,
                 net::Completion completion) override {
    const Ticket ticket = ++network_.last_ticket_;
    Link& link = link_to(peer);
    link.mailbox.post(channel, {ticket, buffer, std::move(completion)}, link.is_up);
    return ticket;
  }
  void handle(net::Channel channel, size_t most, net::Handler handler) override {
    handlers_.erase(channel);
    if (handler) handlers_[channel] = {most, std::move(handler)};
    for (auto& [peer, link] : links_) link->mailbox.serve(channel);
  }
  void listen_to_peers(net::PeerListener listener) override { listener_ = std::move(listener); }
  void disconnect(const std::string& peer) override {
    Link& link = link_to(peer);
    if (!link.is_up) return;
    end_at_peer(peer);
    set_up(peer, false);
  }
  void part(const std::string& peer, Duration at_most) override {
    Link& link = link_to(peer);
    if (!link.is_up) return;
    link.parts = true;
    pump_soon(peer);
    network_.at(now() + at_most, [this, peer, connection = link.connection] {
      if (link_to(peer).connection == connection) disconnect(peer);
    });
  }
  void cancel(Ticket ticket, net::Outcome why) override {
    if (std::erase_if(network_.events_, [&](const auto& e) { return e.first.second == ticket; })) {
      return;
    }
    for (auto& [peer, link] : links_) {
      const auto sent = link->queue.cancel(ticket, why);
      if (sent == net::SendQueue::Cancelled::must_end) network_.cut(name(), peer);
      if (sent != net::SendQueue::Cancelled::unknown || link->mailbox.cancel(ticket, why)) return;
    }
  }
  Duration now() const override { return network_.now(); }
  Ticket after(Duration delay, std::function<void()> timer) override {
    return network_.at(now() + delay, [this, timer = std::move(timer)] {
      if (!is_stopped_) timer();
    });
  }
  bool run_until(const std::function<bool()>& is_over, Duration at_most) override {
    const Duration until = now() + at_most;
    while (!is_over()) {
      if (!network_.step(until)) return is_over();
    }
    return true;
  }

  void set_up(const std::string& peer, bool is_up) {
    Link& link = link_to(peer);
    if (std::exchange(link.is_up, is_up) == is_up) return;
    link.parts = false;
    ++link.connection;
    if (!is_up) {
      link.queue.fail("the connection is gone");
      link.mailbox.fail("the connection is gone");
    }
    if (listener_ && !is_stopped_) listener_({peer, is_up, is_up ? "" : "the connection is gone"});
  }
  void stop() { is_stopped_ = true; }

 private:
  struct Link {
    Link(const std::string& peer, const net::Handlers& handlers,
         const std::function<void(const net::FrameHead&)>& reply)
        : mailbox(peer, handlers, reply) {}

    net::SendQueue queue;
    net::Mailbox mailbox;
    bool is_up = false;
    bool parts = false;       // the connection ends when all has been sent
    uint64_t connection = 0;  // changes with each one that comes or goes
    bool will_pump = false;
    Duration free_at{0};     // when the link has sent all before
    Duration arrives_at{0};  // when the last frame does: none overtakes another
  };

  Link& link_to(const std::string& peer) {
    auto& link = links_[peer];
    if (!link) {
      link = std::make_unique<Link>(peer, handlers_, [this, peer](const net::FrameHead& head) {
        links_[peer]->queue.add_control(head);
        pump_soon(peer);
      });
    }
    return *link;
  }

  void pump_soon(const std::string& peer) {
    Link& link = link_to(peer);
    if (std::exchange(link.will_pump, true)) return;
    network_.at(std::max(now(), link.free_at), [this, peer] { pump(peer); });
  }

  // Notifies the peer after all messages to it that are in flight. Returns the time of this.
  Duration end_at_peer(const std::string& peer) {
    const Duration ended_at = std::max(link_to(peer).arrives_at, now() + network_.latency());
    const uint64_t theirs = network_.endpoints_.at(peer)->link_to(name()).connection;
    network_.at(ended_at, [this, peer, theirs] {
      auto& other = *network_.endpoints_.at(peer);
      if (other.link_to(name()).connection == theirs) other.set_up(name(), false);
    });
    return ended_at;
  }

  // Sends one frame each time the link is free.
  void pump(const std::string& peer) {
    Link& link = link_to(peer);
    link.will_pump = false;
    if (!link.is_up || is_stopped_) return;
    const auto frame = link.queue.next(net::Carries::all);
    if (!frame && link.parts && link.queue.is_empty()) {
      const Duration ended_at = end_at_peer(peer);
      network_.at(ended_at + network_.latency(), [this, peer, connection = link.connection] {
        if (link_to(peer).connection == connection) set_up(peer, false);
      });
    }
    if (!frame) return;
    std::string payload;
    if (frame->head.length > 0) {
      frame->message->message.slice(frame->offset(), frame->head.length,
                                    [&](std::string_view part) { payload += part; });
    }
    const double seconds =
        static_cast<double>(net::kFrameHead + payload.size()) / network_.links_.bytes_per_second;
    link.free_at =
        now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    link.arrives_at = std::max(link.arrives_at, link.free_at + network_.latency());
    network_.at(link.arrives_at, [this, peer, head = frame->head, payload = std::move(payload)] {
      network_.endpoints_.at(peer)->take(name(), head, payload);
    });
    link.queue.wrote(*frame);
    pump_soon(peer);
  }

  void take(const std::string& peer, const net::FrameHead& head, const std::string& payload) {
    Link& link = link_to(peer);
    if (!link.is_up || is_stopped_) return;
    switch (head.kind) {
      case net::FrameKind::message:
      case net::FrameKind::data:
        if (char* const place = link.mailbox.begin(head); place && !payload.empty()) {
          std::memcpy(place, payload.data(), payload.size());
        }
        return link.mailbox.end(head);
      case net::FrameKind::announce:
        return link.mailbox.announce(head);
      case net::FrameKind::grant:
        link.queue.grant(head.id);
        return pump_soon(peer);
      case net::FrameKind::refuse:
        return link.queue.refuse(head.id);
      case net::FrameKind::credit:
        link.queue.give_credit(head.size);
        return pump_soon(peer);
      case net::FrameKind::hold:
        link.queue.hold();
        return pump_soon(peer);
      case net::FrameKind::bye:
        return;
    }
  }

  SimulatedNetwork& network_;
  net::Handlers handlers_;
  net::PeerListener listener_;
  std::map<std::string, std::unique_ptr<Link>> links_;
  bool is_stopped_ = false;
};

SimulatedNetwork::SimulatedNetwork(uint64_t seed, SimulatedLinks links)
    : random_(seed), links_(links) {}

SimulatedNetwork::~SimulatedNetwork() = default;

net::Endpoint& SimulatedNetwork::add(const std::string& name) {
  auto& endpoint = endpoints_[name];
  endpoint = std::make_unique<SimulatedEndpoint>(name, *this);
  return *endpoint;
}

void SimulatedNetwork::connect(const std::string& a, const std::string& b) {
  endpoints_.at(a)->set_up(b, true);
  endpoints_.at(b)->set_up(a, true);
}

void SimulatedNetwork::cut(const std::string& a, const std::string& b) {
  at(now_ + latency(), [this, a, b] { endpoints_.at(a)->set_up(b, false); });
  at(now_ + latency(), [this, a, b] { endpoints_.at(b)->set_up(a, false); });
}

void SimulatedNetwork::stop(const std::string& name) {
  endpoints_.at(name)->stop();
}

Ticket SimulatedNetwork::at(Duration time, std::function<void()> event) {
  events_.emplace(std::pair(time, ++last_ticket_), std::move(event));
  return last_ticket_;
}

Duration SimulatedNetwork::latency() {
  const auto range = (links_.most_latency - links_.least_latency).count();
  return links_.least_latency + Duration(random_.below(static_cast<uint64_t>(range) + 1));
}

bool SimulatedNetwork::step(Duration until) {
  if (events_.empty() || events_.begin()->first.first > until) {
    now_ = until;
    return false;
  }
  const auto event = events_.extract(events_.begin());
  now_ = event.key().first;
  event.mapped()();
  return true;
}

}  // namespace troika::test
