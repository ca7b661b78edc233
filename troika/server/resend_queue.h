// A queue of messages that are sent in order, and sent again until they are acknowledged. Internal
// to the room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "troika/net/endpoint.h"

namespace troika::server {

// Go-back-N: if no item is acknowledged for some time, all items are sent again, in order. Not
// thread-safe.
template <typename Item>
class ResendQueue {
 public:
  // `patience`: the time without an acknowledgement before items are sent again. It doubles after
  // each of the first three attempts without success. `window`: the maximum number of items that
  // are sent and not acknowledged.
  ResendQueue(net::Duration patience, size_t window) : patience_(patience), window_(window) {}
  ResendQueue(ResendQueue&&) = default;
  ResendQueue& operator=(ResendQueue&&) = default;

  // `number` must be greater than all earlier ones.
  void add(uint64_t number, Item item) { items_.emplace(number, std::move(item)); }
  // Removes the item of an acknowledged number; nullopt if it is not in the queue.
  std::optional<Item> take(uint64_t number, net::Duration now) {
    const auto found = items_.find(number);
    if (found == items_.end()) return std::nullopt;
    if (number < next_) --on_their_way_;
    attempts_ = 0;
    last_ = now;
    auto item = std::move(found->second);
    items_.erase(found);
    return item;
  }
  void take_through(uint64_t number, net::Duration now) {
    while (!items_.empty() && items_.begin()->first <= number) take(items_.begin()->first, now);
  }
  // Removes and returns any item.
  Item take_first(net::Duration now) { return *take(items_.begin()->first, now); }

  bool is_empty() const { return items_.empty(); }
  // The lowest number in the queue, or `none` if it is empty.
  uint64_t floor(uint64_t none) const { return items_.empty() ? none : items_.begin()->first; }

  // Returns the item of a number; null if it is not in the queue.
  const Item* find(uint64_t number) const {
    const auto found = items_.find(number);
    return found == items_.end() ? nullptr : &found->second;
  }

  // Calls `send(number, item, completion)` for all unsent items that the window allows.
  // `completion` must run when the endpoint has sent the item or has failed to.
  template <typename Send>
  void send(net::Duration now, const Send& send) {
    for (auto at = items_.lower_bound(next_); at != items_.end() && on_their_way_ < window_; ++at) {
      if (on_their_way_ == 0) last_ = now;
      ++on_their_way_;
      next_ = at->first + 1;
      ++*sending_;
      send(at->first, at->second, [count = sending_](const net::Result&) { --*count; });
    }
  }
  // Marks all items as unsent. Sends from before that the endpoint has not ended no longer count:
  // one to a stopped process may stay for long.
  void restart() {
    next_ = 0;
    on_their_way_ = 0;
    sending_ = std::make_shared<size_t>(0);
  }
  // Sends all items again if the time without an acknowledgement has passed. The time begins when
  // the endpoint has sent them, which takes long for large items.
  template <typename Send>
  void resend(net::Duration now, const Send& send_one) {
    if (*sending_ > 0) last_ = now;
    if (on_their_way_ == 0 || now - last_ < patience_ * (1 << std::min(attempts_, 3))) return;
    ++attempts_;
    restart();
    send(now, send_one);
  }

 private:
  net::Duration patience_;
  size_t window_;
  std::map<uint64_t, Item> items_;
  uint64_t next_ = 0;        // items below it were sent
  size_t on_their_way_ = 0;  // items below next_
  net::Duration last_{0};    // the last acknowledgement or repeat of all items
  int attempts_ = 0;
  // The number of items that the endpoint has not sent yet; completions may outlive the queue.
  std::shared_ptr<size_t> sending_ = std::make_shared<size_t>(0);
};

}  // namespace troika::server
