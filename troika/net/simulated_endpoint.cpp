#include "troika/net/simulated_endpoint.h"

#include <algorithm>
#include <cstring>

namespace troika::net {

namespace {

Duration time_of(uint64_t bytes, double bytes_per_second) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second));
}

}  // namespace

Ticket SimulatedEndpoint::send(const std::string& peer, Channel channel, const Pieces& message,
                               Priority priority, Completion completion) {
  const Ticket ticket = ++network_.last_ticket_;
  Link& link = link_to(peer);
  if (link.is_up && !link.parts) {
    link.queue.add(std::make_shared<Outgoing>(
        Outgoing{ticket, channel, message, priority, std::move(completion)}));
    pump_soon(link);
  } else if (completion) {
    network_.at(now(), [completion = std::move(completion)] {
      completion({.outcome = Outcome::lost, .reason = "it is not connected"});
    });
  }
  return ticket;
}

Ticket SimulatedEndpoint::receive(const std::string& peer, Channel channel, std::span<char> buffer,
                                  Completion completion) {
  const Ticket ticket = ++network_.last_ticket_;
  Link& link = link_to(peer);
  link.mailbox.post(channel, {ticket, buffer, std::move(completion)}, link.is_up);
  return ticket;
}

void SimulatedEndpoint::handle(Channel channel, size_t most, Handler handler) {
  handlers_.erase(channel);
  if (handler) handlers_[channel] = {most, std::move(handler)};
  for (auto& [peer, link] : links_) link->mailbox.serve(channel);
}

void SimulatedEndpoint::disconnect(const std::string& peer) {
  Link& link = link_to(peer);
  if (!link.is_up) return;
  end_at_peer(link);
  set_up(link, false);
}

void SimulatedEndpoint::part(const std::string& peer, Duration at_most) {
  Link& link = link_to(peer);
  if (!link.is_up) return;
  link.parts = true;
  pump_soon(link);
  network_.at(now() + at_most, [this, &link, connection = link.connection] {
    if (link.connection != connection) return;
    end_at_peer(link);
    set_up(link, false);
  });
}

void SimulatedEndpoint::cancel(Ticket ticket, Outcome why) {
  if (network_.cancel(ticket)) return;
  for (auto& [peer, link] : links_) {
    const auto sent = link->queue.cancel(ticket, why);
    if (sent == SendQueue::Cancelled::must_end) network_.cut(name(), peer);
    if (sent != SendQueue::Cancelled::unknown || link->mailbox.cancel(ticket, why)) return;
  }
}

Ticket SimulatedEndpoint::after(Duration delay, std::function<void()> timer) {
  return network_.at(
      now() + delay,
      [this, timer = std::move(timer)] {
        if (!is_stopped_) timer();
      },
      /*is_timer=*/true);
}

bool SimulatedEndpoint::run_until(const std::function<bool()>& is_over, Duration at_most) {
  const Duration until = now() + at_most;
  while (!is_over()) {
    if (!network_.step(until)) return is_over();
  }
  return true;
}

SimulatedEndpoint::Link& SimulatedEndpoint::link_to(const std::string& peer) {
  auto& link = links_[peer];
  if (!link) {
    link = std::make_unique<Link>(peer, handlers_, [this, peer](const FrameHead& head) {
      Link& back = *links_[peer];
      back.queue.add_control(head);
      pump_soon(back);
    });
  }
  return *link;
}

void SimulatedEndpoint::set_up(SimulatedEndpoint& other, bool is_up) {
  Link& link = link_to(other.name());
  link.other = &other;
  link.back = &other.link_to(name());
  set_up(link, is_up);
}

void SimulatedEndpoint::set_up(Link& link, bool is_up) {
  if (std::exchange(link.is_up, is_up) == is_up) return;
  link.parts = false;
  ++link.connection;
  if (!is_up) {
    link.frame.reset();
    link.queue.fail("the connection is gone");
    link.mailbox.fail("the connection is gone");
  }
  if (listener_ && !is_stopped_) {
    listener_({link.other->name(), is_up, is_up ? "" : "the connection is gone"});
  }
}

// Notifies the peer after all messages to it that are in flight. Returns the time of this.
Duration SimulatedEndpoint::end_at_peer(Link& link) {
  const Duration ended_at = std::max(link.arrives_at, now() + network_.latency());
  network_.at(ended_at, [&link, theirs = link.back->connection] {
    if (link.back->connection == theirs) link.other->set_up(*link.back, false);
  });
  return ended_at;
}

void SimulatedEndpoint::end_when_sent(Link& link) {
  const Duration ended_at = end_at_peer(link);
  network_.at(ended_at + network_.latency(), [this, &link, connection = link.connection] {
    if (link.connection == connection) set_up(link, false);
  });
}

void SimulatedEndpoint::pump_soon(Link& link) {
  if (std::exchange(link.will_pump, true)) return;
  network_.at(std::max(now(), link.free_at), [this, &link] { pump(link); });
}

void SimulatedEndpoint::begin_frame(Link& link, const OutFrame& frame) {
  auto& [head, payload, bytes, begun] = link.frame.emplace(frame.head);
  begun = now();
  bytes = kFrameHead + head.length;
  if (head.length > 0) {
    payload.reserve(head.length);
    frame.message->message.slice(frame.offset(), head.length,
                                 [&](std::string_view part) { payload += part; });
    const auto& weigh = network_.links_.weigh;
    if (weigh) bytes = kFrameHead + weigh(frame.message->channel, head.length);
  }
  link.left = bytes;
  traffic_.sent += bytes;
  link.queue.wrote(frame);
}

// Sends a part of a frame each time the link is free.
void SimulatedEndpoint::pump(Link& link) {
  link.will_pump = false;
  if (!link.is_up || is_stopped_) return;
  if (!link.frame) {
    const auto frame = link.queue.next(Carries::all);
    if (!frame && link.parts && link.queue.is_empty()) end_when_sent(link);
    if (!frame) return;
    begin_frame(link, *frame);
  }
  const uint64_t bytes = std::min<uint64_t>(link.left, kFrameHead + kMaxFramePayload);
  link.left -= bytes;
  up_free_at_ = std::max(now(), up_free_at_) + time_of(bytes, access_.up);
  link.free_at = std::max(up_free_at_, now() + time_of(bytes, network_.links_.bytes_per_second));
  if (link.left == 0) send_frame(link);
  pump_soon(link);
}

void SimulatedEndpoint::send_frame(Link& link) {
  link.arrives_at = std::max(link.arrives_at, link.free_at + network_.latency() + access_.latency +
                                                  link.other->access_.latency);
  auto frame = *std::exchange(link.frame, {});
  const Duration sending = link.free_at - frame.begun;
  network_.at(link.arrives_at, [&link, sending, frame = std::move(frame)]() mutable {
    link.other->arrive(*link.back, std::move(frame), sending);
  });
}

// The last byte of a frame has come to this endpoint's access, and the first one as long before as
// the sending took. The access passes it on when it has passed on all before.
void SimulatedEndpoint::arrive(Link& link, Frame frame, Duration sending) {
  if (!link.is_up || is_stopped_) return;
  traffic_.received += frame.bytes;
  const Duration from = std::max(down_free_at_, now() - sending);
  down_free_at_ = std::max(now(), from + time_of(frame.bytes, access_.down));
  if (down_free_at_ == now()) return take(link, frame);
  network_.at(down_free_at_, [this, &link, frame = std::move(frame), connection = link.connection] {
    if (link.connection == connection) take(link, frame);
  });
}

void SimulatedEndpoint::take(Link& link, const Frame& frame) {
  const auto& [head, payload, bytes, begun] = frame;
  if (!link.is_up || is_stopped_) return;
  switch (head.kind) {
    case FrameKind::message:
    case FrameKind::data:
      if (char* const place = link.mailbox.begin(head); place && !payload.empty()) {
        std::memcpy(place, payload.data(), payload.size());
      }
      return link.mailbox.end(head);
    case FrameKind::announce:
      return link.mailbox.announce(head);
    case FrameKind::grant:
      link.queue.grant(head.id);
      return pump_soon(link);
    case FrameKind::refuse:
      return link.queue.refuse(head.id);
    case FrameKind::credit:
      link.queue.give_credit(head.size);
      return pump_soon(link);
    case FrameKind::hold:
      link.queue.hold();
      return pump_soon(link);
    case FrameKind::bye:
      return;
  }
}

}  // namespace troika::net
