#include "troika/swarm/metered_endpoint.h"

#include <algorithm>

#include "troika/swarm/averaging.h"
#include "troika/swarm/state_transfer.h"

namespace troika::swarm {

namespace {

// Tells the tickets of messages that wait from those of the other endpoint.
constexpr net::Ticket kOwnTickets = net::Ticket{1} << 63;

bool has_numbers(net::Channel channel, net::Priority priority) {
  return channel == kAveraging && priority == net::Priority::bulk;
}

// Whether these messages wait at this endpoint.
bool waits_here(net::Channel channel, net::Priority priority) {
  return channel == kStateAnswers || has_numbers(channel, priority);
}

bool waits_at_senders(net::Channel channel) {
  return channel == kStateAnswers || channel == kAveraging;
}

}  // namespace

MeteredEndpoint::MeteredEndpoint(net::Endpoint& inner, const BandwidthCap& cap)
    : Endpoint(inner.name()), inner_(inner), up_(cap.up), down_(cap.down) {
  inner_.listen_to_peers([this](const net::PeerChange& change) { take_change(change); });
}

MeteredEndpoint::~MeteredEndpoint() {
  inner_.listen_to_peers({});
  while (!pulls_.empty()) stop_pulling(pulls_.begin()->first);
  while (!waiting_.empty()) fail_waiting(waiting_.front().peer, "this endpoint ends");
}

void MeteredEndpoint::take_change(const net::PeerChange& change) {
  if (change.is_up) {
    connected_.insert(change.peer);
  } else {
    connected_.erase(change.peer);
    fail_waiting(change.peer, change.reason);
  }
  // A copy, because the listener may replace itself.
  if (const auto listener = listener_) listener(change);
  if (change.is_up) pull();
}

void MeteredEndpoint::fail_waiting(const std::string& peer, const std::string& reason) {
  std::vector<net::Completion> lost;
  std::erase_if(waiting_, [&](Waiting& message) {
    if (message.peer != peer) return false;
    if (message.completion) lost.push_back(std::move(message.completion));
    return true;
  });
  for (const auto& completion : lost) {
    completion({.outcome = net::Outcome::lost, .reason = reason});
  }
}

net::Completion MeteredEndpoint::counted(net::Completion completion) {
  ++sending_;
  return [forget = alive_.guard([this] { --sending_; }),
          completion = std::move(completion)](const net::Result& result) mutable {
    forget();
    if (completion) completion(result);
  };
}

net::Ticket MeteredEndpoint::send(const std::string& peer, net::Channel channel,
                                  const net::Pieces& message, net::Priority priority,
                                  net::Completion completion) {
  if (has_numbers(channel, priority)) completion = counted(std::move(completion));
  const bool waits =
      waits_here(channel, priority) && (!waiting_.empty() || up_.wait(now()) > net::Duration(0));
  if (!waits) {
    traffic_.sent += message.bytes();
    up_.take(message.bytes(), now());
    return inner_.send(peer, channel, message, priority, std::move(completion));
  }
  const net::Ticket ticket = kOwnTickets | ++last_ticket_;
  waiting_.push_back({ticket, peer, channel, message, priority, std::move(completion)});
  send_waiting();
  return ticket;
}

void MeteredEndpoint::send_waiting() {
  while (!waiting_.empty()) {
    if (const auto wait = up_.wait(now()); wait > net::Duration(0)) {
      if (std::exchange(flags_.sends_later, true)) return;
      inner_.after(wait, alive_.guard([this] {
        flags_.sends_later = false;
        send_waiting();
      }));
      return;
    }
    auto message = std::move(waiting_.front());
    waiting_.pop_front();
    traffic_.sent += message.message.bytes();
    up_.take(message.message.bytes(), now());
    const auto own = message.ticket;
    late_[own] = 0;
    const auto inner = inner_.send(
        message.peer, message.channel, message.message, message.priority,
        [forget = alive_.guard([this, own] { late_.erase(own); }),
         completion = std::move(message.completion)](const net::Result& result) mutable {
          forget();
          if (completion) completion(result);
        });
    // It may have ended within the call.
    if (const auto late = late_.find(own); late != late_.end()) late->second = inner;
  }
}

void MeteredEndpoint::cancel(net::Ticket ticket, net::Outcome why) {
  if ((ticket & kOwnTickets) == 0) return inner_.cancel(ticket, why);
  if (const auto late = late_.find(ticket); late != late_.end()) {
    return inner_.cancel(late->second, why);
  }
  const auto found = std::ranges::find(waiting_, ticket, &Waiting::ticket);
  if (found == waiting_.end()) return;
  const auto completion = std::move(found->completion);
  waiting_.erase(found);
  if (completion) completion({.outcome = why});
}

void MeteredEndpoint::count_received(size_t bytes) {
  traffic_.received += bytes;
  down_.take(bytes, now());
}

net::Ticket MeteredEndpoint::receive(const std::string& peer, net::Channel channel,
                                     std::span<char> buffer, net::Completion completion) {
  return inner_.receive(peer, channel, buffer,
                        [count = alive_.guard([this](size_t bytes) { count_received(bytes); }),
                         completion = std::move(completion)](const net::Result& result) mutable {
                          if (result.outcome == net::Outcome::done) count(result.bytes);
                          if (completion) completion(result);
                        });
}

void MeteredEndpoint::handle(net::Channel channel, size_t most, net::Handler handler) {
  if (down_.is_limited() && waits_at_senders(channel)) {
    stop_pulling(channel);
    if (handler) pulls_[channel] = {std::move(handler), most};
    return pull();
  }
  if (!handler) return inner_.handle(channel, most, {});
  inner_.handle(channel, most,
                [this, handler = std::move(handler)](const std::string& peer, std::string message) {
                  count_received(message.size());
                  handler(peer, std::move(message));
                });
}

void MeteredEndpoint::stop_pulling(net::Channel channel) {
  const auto pull = pulls_.extract(channel);
  if (!pull) return;
  for (const auto& [peer, posted] : pull.mapped().posted) {
    if (posted.is_open) inner_.cancel(posted.ticket, net::Outcome::cancelled);
  }
}

std::vector<std::pair<net::Channel, std::string>> MeteredEndpoint::places_to_pull_from() const {
  std::vector<std::pair<net::Channel, std::string>> places;
  for (const auto& [channel, pull] : pulls_) {
    for (const auto& peer : connected_) {
      const auto posted = pull.posted.find(peer);
      if (posted == pull.posted.end() || !posted->second.is_open)
        places.emplace_back(channel, peer);
    }
  }
  return places;
}

// Posts receives while the cap allows it. Messages that are there complete them at once.
void MeteredEndpoint::pull() {
  flags_.pulls_again = true;
  if (std::exchange(flags_.is_pulling, true)) return;
  auto wait = net::Duration(0);
  while (wait == net::Duration(0) && std::exchange(flags_.pulls_again, false)) {
    for (const auto& [channel, peer] : places_to_pull_from()) {
      wait = down_.wait(now());
      if (wait > net::Duration(0)) break;
      post(channel, peer);
    }
  }
  flags_.is_pulling = false;
  if (wait == net::Duration(0) || std::exchange(flags_.pulls_later, true)) return;
  inner_.after(wait, alive_.guard([this] {
    flags_.pulls_later = false;
    pull();
  }));
}

void MeteredEndpoint::post(net::Channel channel, const std::string& peer) {
  const auto pull = pulls_.find(channel);
  if (pull == pulls_.end() || !connected_.contains(peer)) return;
  auto& posted = pull->second.posted[peer];
  posted.is_open = true;
  posted.buffer.resize(pull->second.most);
  const auto ticket = inner_.receive(peer, channel, posted.buffer,
                                     alive_.guard([this, channel, peer](const net::Result& result) {
                                       take(channel, peer, result);
                                     }));
  // The message may have been there, and its handler may have ended the channel.
  if (const auto now = pulls_.find(channel); now != pulls_.end())
    now->second.posted[peer].ticket = ticket;
}

void MeteredEndpoint::take(net::Channel channel, const std::string& peer,
                           const net::Result& result) {
  const auto pull = pulls_.find(channel);
  if (pull == pulls_.end()) return;
  auto& posted = pull->second.posted[peer];
  posted.is_open = false;
  if (result.outcome == net::Outcome::lost) {
    pull->second.posted.erase(peer);
    connected_.erase(peer);  // the listener hears of it later
    return;
  }
  if (result.outcome == net::Outcome::done) {
    count_received(result.bytes);
    auto message = posted.buffer.substr(0, result.bytes);
    const auto handler = pull->second.handler;
    handler(peer, std::move(message));
  }
  this->pull();
}

}  // namespace troika::swarm
