#include "troika/net/send_queue.h"

#include <algorithm>

#include "troika/base/error.h"

namespace troika::net {

void SendQueue::add(std::shared_ptr<Outgoing> message) {
  live_.emplace(message->ticket, message);
  fresh_[static_cast<size_t>(message->priority)].push_back(std::move(message));
}

std::optional<OutFrame> SendQueue::next(Carries carries) {
  const bool takes_messages = carries != Carries::data;
  if (takes_messages && !control_.empty()) {
    OutFrame frame{control_.front()};
    control_.pop_front();
    return frame;
  }
  bool has_credit = true;
  for (size_t i = 0; i < kPriorities; ++i) {
    // While a message waits for credit, smaller messages of lower priority must not overtake it.
    if (takes_messages && has_credit && !fresh_[i].empty()) {
      if (auto frame = next_message(i)) return frame;
      has_credit = false;
    }
    if (carries != Carries::all_but_data && !granted_[i].empty()) return next_data(granted_[i]);
  }
  return std::nullopt;
}

std::optional<OutFrame> SendQueue::next_message(size_t priority) {
  Queue& queue = fresh_[priority];
  const size_t bytes = queue.front()->message.bytes();
  const bool is_eager = bytes == 0 || (bytes <= kEagerBytes && !announces_all_);
  OutFrame frame{{.kind = is_eager ? FrameKind::message : FrameKind::announce,
                  .length = is_eager ? static_cast<uint32_t>(bytes) : 0,
                  .channel = queue.front()->channel,
                  .id = 0,
                  .size = is_eager ? 0 : bytes}};
  const size_t cost = credit_cost(frame.head);
  const size_t reserve = is_eager && !announces_all_ ? kAnnounceCredit : 0;
  if (cost + reserve > credit_) return std::nullopt;
  credit_ -= cost;
  frame.message = std::move(queue.front());
  queue.pop_front();
  frame.message->has_begun = true;
  if (is_eager) {
    frame.message->framed = bytes;
  } else {
    frame.head.id = next_id_++;
    announced_.emplace(frame.head.id, frame.message);
  }
  return frame;
}

OutFrame SendQueue::next_data(Queue& queue) {
  Outgoing& message = *queue.front();
  const size_t length = std::min(kMaxFramePayload, message.message.bytes() - message.framed);
  OutFrame frame{{.kind = FrameKind::data,
                  .length = static_cast<uint32_t>(length),
                  .channel = message.channel,
                  .id = message.id,
                  .size = message.framed},
                 queue.front()};
  message.framed += length;
  if (message.framed == message.message.bytes()) queue.pop_front();
  return frame;
}

void SendQueue::wrote(const OutFrame& frame) {
  if (!frame.message || frame.head.kind == FrameKind::announce) return;
  frame.message->written += frame.head.length;
  if (frame.message->written < frame.message->message.bytes()) return;
  complete(frame.message, {.outcome = Outcome::done, .bytes = frame.message->written});
}

std::shared_ptr<Outgoing> SendQueue::take_announced(uint64_t id) {
  auto node = announced_.extract(id);
  if (node.empty()) {
    throw Error("net", ErrorKind::failure, {.what = "broken frame", .got = "an unknown message"});
  }
  return std::move(node.mapped());
}

void SendQueue::grant(uint64_t id) {
  auto message = take_announced(id);
  message->id = id;
  granted_[static_cast<size_t>(message->priority)].push_back(std::move(message));
}

void SendQueue::refuse(uint64_t id) {
  const auto message = take_announced(id);
  complete(message, {.outcome = Outcome::too_long,
                     .bytes = message->message.bytes(),
                     .reason = "its receiver has no room"});
}

void SendQueue::give_credit(uint64_t amount) {
  if (amount > kCreditWindow - credit_) {
    throw Error("net", ErrorKind::failure, {.what = "broken frame", .got = "too much credit"});
  }
  credit_ += amount;
  announces_all_ = false;
}

SendQueue::Cancelled SendQueue::cancel(Ticket ticket, Outcome why) {
  const auto found = live_.find(ticket);
  if (found == live_.end()) return Cancelled::unknown;
  const auto message = found->second;
  const bool has_begun = message->has_begun;
  if (!has_begun) std::erase(fresh_[static_cast<size_t>(message->priority)], message);
  complete(message, {.outcome = why, .reason = "it was given up"});
  return has_begun ? Cancelled::must_end : Cancelled::done;
}

void SendQueue::fail(const std::string& reason) {
  auto live = std::move(live_);
  *this = SendQueue();
  for (const auto& [ticket, message] : live) {
    if (message->completion) message->completion({.outcome = Outcome::lost, .reason = reason});
  }
}

void SendQueue::complete(const std::shared_ptr<Outgoing>& message, const Result& result) {
  if (live_.erase(message->ticket) > 0 && message->completion) message->completion(result);
}

}  // namespace troika::net
