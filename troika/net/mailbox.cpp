#include "troika/net/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/log.h"

namespace troika::net {

namespace {

// Messages of at most this size are not expected in advance, because copying them takes less.
constexpr size_t kShort = size_t{8} << 10;
// Announced messages for handlers are granted while they have at most this many bytes together. So
// the next one follows without a wait, and a peer does not occupy more memory than its longest
// message or this.
constexpr size_t kMostFilled = size_t{32} << 20;

[[noreturn]] void fail_frame(const std::string& got) {
  throw Error("net", ErrorKind::failure, {.what = "broken frame", .got = got});
}

void finish(const Posted& posted, Outcome outcome, size_t bytes, const std::string& reason = {}) {
  if (posted.completion) {
    posted.completion({.outcome = outcome, .bytes = bytes, .reason = reason});
  }
}

void finish_too_long(const Posted& posted, size_t bytes) {
  finish(posted, Outcome::too_long, bytes,
         fmt::format("{} bytes came for a buffer of {}", bytes, posted.buffer.size()));
}

}  // namespace

Mailbox::Mailbox(std::string peer, const Handlers& handlers,
                 std::function<void(const FrameHead&)> reply)
    : peer_(std::move(peer)), handlers_(handlers), reply_(std::move(reply)) {}

void Mailbox::charge(size_t cost) {
  held_ += cost;
  if (held_ > kCreditWindow) fail_frame("more bytes than the credit allows");
}

void Mailbox::consumed(size_t cost) {
  held_ -= cost;
  owed_ += cost;
  const bool ends_hold = has_told_hold_ && held_ <= kHoldFrom / 2;
  if (owed_ < kCreditBack && !ends_hold) return;
  has_told_hold_ = false;
  reply_({.kind = FrameKind::credit, .size = std::exchange(owed_, 0)});
}

std::optional<FrameHead> Mailbox::take_credit() {
  // Nearly every long message is followed by credit, so heads before long messages are alike.
  if (owed_ < kShort || has_told_hold_) return std::nullopt;
  return FrameHead{.kind = FrameKind::credit, .size = std::exchange(owed_, 0)};
}

// Stores a message or an announcement that is not consumed yet.
void Mailbox::keep(Arrived arrived) {
  arrived_[arrived.head.channel].push_back(std::move(arrived));
  if (held_ <= kHoldFrom || std::exchange(has_told_hold_, true)) return;
  reply_({.kind = FrameKind::hold});
}

std::optional<Posted> Mailbox::take_posted(Channel channel) {
  const auto found = posted_.find(channel);
  if (found == posted_.end()) return std::nullopt;
  Posted posted = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) posted_.erase(found);
  return posted;
}

const HandlerEntry* Mailbox::handler_of(Channel channel) const {
  const auto found = handlers_.find(channel);
  return found == handlers_.end() ? nullptr : &found->second;
}

void Mailbox::post(Channel channel, Posted posted, bool is_connected) {
  const auto found = arrived_.find(channel);
  if (found != arrived_.end()) {
    const Arrived arrived = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) arrived_.erase(found);
    fill(std::move(posted), arrived);
  } else if (is_connected) {
    posted_[channel].push_back(std::move(posted));
  } else {
    finish(posted, Outcome::lost, 0, fmt::format("{} is not connected", peer_));
  }
}

void Mailbox::fill(Posted posted, const Arrived& arrived) {
  consumed(arrived.cost);
  if (arrived.head.kind == FrameKind::announce) return accept(std::move(posted), arrived.head);
  const std::string& text = arrived.text;
  if (text.size() > posted.buffer.size()) return finish_too_long(posted, text.size());
  if (!text.empty()) std::memcpy(posted.buffer.data(), text.data(), text.size());
  finish(posted, Outcome::done, text.size());
}

void Mailbox::accept(Posted posted, const FrameHead& head) {
  const bool fits = head.size <= posted.buffer.size();
  reply_({.kind = fits ? FrameKind::grant : FrameKind::refuse, .id = head.id});
  if (!fits) return finish_too_long(posted, head.size);
  Incoming& incoming = incoming_[head.id];
  incoming.posted = std::move(posted);
  incoming.is_posted = true;
  incoming.size = incoming.missing = head.size;
}

bool Mailbox::deliver(Arrived& arrived) {
  const Channel channel = arrived.head.channel;
  if (auto posted = take_posted(channel)) {
    fill(std::move(*posted), arrived);
    return true;
  }
  const HandlerEntry* entry = handler_of(channel);
  if (!entry) return false;
  if (arrived.head.kind == FrameKind::message) {
    consumed(arrived.cost);
    // A copy, because the handler may replace itself.
    const Handler handler = entry->handler;
    if (arrived.text.size() <= entry->most) {
      handler(peer_, std::move(arrived.text));
    } else if (entry->most > 0) {  // a handler for 0 bytes drops messages on purpose
      // The sender cannot be told: its send of a short message has ended.
      log::warn("[net] a message of {} bytes from {} on channel {} is dropped; expected at most {}",
                arrived.text.size(), peer_, channel, entry->most);
    }
    return true;
  }
  const FrameHead& head = arrived.head;
  if (head.size > entry->most) {
    consumed(arrived.cost);
    reply_({.kind = FrameKind::refuse, .id = head.id});
    return true;
  }
  if (filled_.bytes > 0 && filled_.bytes + head.size > kMostFilled) return false;
  // Its frames may arrive on several sockets at once, so the text must not move.
  std::string text;
  try {
    text.reserve(head.size);
  } catch (const std::bad_alloc&) {
    log::warn("[net] there is no memory for a message of {} bytes from {} on channel {}", head.size,
              peer_, channel);
    consumed(arrived.cost);
    reply_({.kind = FrameKind::refuse, .id = head.id});
    return true;
  }
  filled_.bytes += head.size;
  filled_.ids.push_back(head.id);
  consumed(arrived.cost);
  Incoming& incoming = incoming_[head.id];
  incoming.channel = channel;
  incoming.text = std::move(text);
  incoming.size = incoming.missing = head.size;
  reply_({.kind = FrameKind::grant, .id = head.id});
  return true;
}

void Mailbox::serve(Channel channel) {
  while (true) {
    const auto found = arrived_.find(channel);
    if (found == arrived_.end() || !handler_of(channel)) return;
    Arrived arrived = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) arrived_.erase(found);
    if (deliver(arrived)) continue;
    arrived_[channel].push_front(std::move(arrived));
    return;
  }
}

void Mailbox::announce(const FrameHead& head) {
  const size_t cost = credit_cost(head);
  charge(cost);
  if (incoming_.contains(head.id)) fail_frame("a message twice");
  Arrived arrived{head, {}, cost};
  // Earlier messages of the channel must be delivered first.
  if (arrived_.contains(head.channel) || !deliver(arrived)) keep(std::move(arrived));
}

char* Mailbox::begin(const FrameHead& head) {
  return head.kind == FrameKind::data ? begin_data(head) : begin_message(head);
}

void Mailbox::end(const FrameHead& head) {
  return head.kind == FrameKind::data ? end_data(head) : end_message(head);
}

FrameSink::Expected Mailbox::expected() const {
  const auto found = posted_.find(long_channel_);
  if (found == posted_.end()) return {};
  const auto buffer = found->second.front().buffer;
  return {long_channel_, buffer.first(std::min(buffer.size(), long_length_))};
}

char* Mailbox::begin_message(const FrameHead& head) {
  charge(credit_cost(head));
  if (head.length > kShort) {
    long_channel_ = head.channel;
    long_length_ = head.length;
  }
  direct_ = take_posted(head.channel);
  // The receive ends in end_message(), since the reader may still use its buffer.
  is_dropped_ = direct_ && head.length > direct_->buffer.size();
  if (is_dropped_) return nullptr;
  if (direct_) return direct_->buffer.data();
  text_.resize(head.length);
  return text_.data();
}

void Mailbox::end_message(const FrameHead& head) {
  const size_t cost = credit_cost(head);
  if (direct_ || is_dropped_) {
    consumed(cost);
    const auto posted = std::exchange(direct_, std::nullopt);
    if (posted && is_dropped_) return finish_too_long(*posted, head.length);
    if (posted) finish(*posted, Outcome::done, head.length);
    return;
  }
  Arrived arrived{head, std::exchange(text_, {}), cost};
  if (arrived_.contains(head.channel) || !deliver(arrived)) keep(std::move(arrived));
}

char* Mailbox::begin_data(const FrameHead& head) {
  const auto found = incoming_.find(head.id);
  if (found == incoming_.end()) fail_frame("data that was not requested");
  Incoming& incoming = found->second;
  if (head.length > incoming.missing) fail_frame("data beyond its message");
  const bool is_cancelled = incoming.is_posted && incoming.posted.buffer.empty();
  if (is_cancelled) return nullptr;
  const size_t room = incoming.is_posted ? incoming.posted.buffer.size() : incoming.size;
  if (head.size > room || head.length > room - head.size) fail_frame("data beyond its message");
  if (incoming.is_posted) return incoming.posted.buffer.data() + head.size;
  // Zeros that are written just before the payload stay in the cache.
  const size_t end = head.size + head.length;
  if (incoming.text.size() < end) incoming.text.resize(end);
  return incoming.text.data() + head.size;
}

void Mailbox::end_data(const FrameHead& head) {
  const auto found = incoming_.find(head.id);
  Incoming& incoming = found->second;
  incoming.missing -= head.length;
  if (incoming.missing > 0) return;
  if (incoming.is_posted) {
    const Incoming whole = std::move(incoming);
    incoming_.erase(found);
    return finish(whole.posted, Outcome::done, whole.size);
  }
  // With several sockets, a message may be complete before an earlier one.
  while (!filled_.ids.empty() && incoming_.at(filled_.ids.front()).missing == 0) {
    Incoming whole = std::move(incoming_.extract(filled_.ids.front()).mapped());
    filled_.ids.pop_front();
    filled_.bytes -= whole.size;
    if (const HandlerEntry* entry = handler_of(whole.channel)) {
      const Handler handler = entry->handler;
      handler(peer_, std::move(whole.text));
    }
  }
  std::vector<Channel> waiting;
  for (const auto& [channel, queue] : arrived_) waiting.push_back(channel);
  for (const Channel channel : waiting) serve(channel);
}

std::optional<std::span<char>> Mailbox::cancel(Ticket ticket, Outcome why) {
  const auto end_with = [&](Posted posted) {
    finish(posted, why, 0, "it was given up");
    return posted.buffer;
  };
  for (auto& [channel, queue] : posted_) {
    const auto found = std::ranges::find(queue, ticket, &Posted::ticket);
    if (found == queue.end()) continue;
    Posted posted = std::move(*found);
    queue.erase(found);
    if (queue.empty()) posted_.erase(channel);
    return end_with(std::move(posted));
  }
  if (direct_ && direct_->ticket == ticket) {
    is_dropped_ = true;
    return end_with(*std::exchange(direct_, std::nullopt));
  }
  for (auto& [id, incoming] : incoming_) {
    if (incoming.is_posted && incoming.posted.ticket == ticket) {
      // Its remaining data frames still arrive, and are dropped.
      return end_with(std::exchange(incoming.posted, {}));
    }
  }
  return std::nullopt;
}

void Mailbox::fail(const std::string& reason) {
  std::vector<Posted> lost;
  for (auto& [channel, queue] : posted_) std::ranges::move(queue, std::back_inserter(lost));
  for (auto& [id, incoming] : incoming_) {
    if (incoming.is_posted) lost.push_back(std::move(incoming.posted));
  }
  if (direct_) lost.push_back(*std::exchange(direct_, std::nullopt));
  posted_.clear();
  incoming_.clear();
  for (auto entry = arrived_.begin(); entry != arrived_.end();) {
    std::erase_if(entry->second,
                  [](const Arrived& a) { return a.head.kind == FrameKind::announce; });
    for (Arrived& arrived : entry->second) arrived.cost = 0;
    entry = entry->second.empty() ? arrived_.erase(entry) : std::next(entry);
  }
  filled_ = {};
  held_ = owed_ = 0;
  has_told_hold_ = false;
  for (const Posted& posted : lost) finish(posted, Outcome::lost, 0, reason);
}

}  // namespace troika::net
