// Messages that have overtaken earlier ones. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "troika/net/frame.h"
#include "troika/server/send.h"

namespace troika::server {

// An endpoint may pass a message of at most 257 KiB to its handler before a longer one of the same
// channel that was sent earlier (net/endpoint.h). Where messages must be executed in the order of
// their numbers, those that come too early wait here, so that their senders do not have to send
// them again. Not thread-safe.
class AheadMessages {
 public:
  // Keeps a message of a stream if it is short enough to overtake others and there is room.
  void keep(uint64_t stream, uint64_t number, Message message) {
    if (message->size() > net::kEagerBytes || bytes_ + message->size() > kMostBytes) return;
    const auto [entry, is_new] = messages_.try_emplace({stream, number}, std::move(message));
    if (is_new) bytes_ += entry->second->size();
  }
  // Removes the messages of the stream up to this number, and returns the one of this number; null
  // if it is not here.
  Message take(uint64_t stream, uint64_t number) {
    Message message;
    auto entry = messages_.lower_bound({stream, 0});
    while (entry != messages_.end() && entry->first <= std::pair(stream, number)) {
      bytes_ -= entry->second->size();
      if (entry->first.second == number) message = entry->second;
      entry = messages_.erase(entry);
    }
    return message;
  }
  void clear() {
    messages_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kMostBytes = size_t{4} << 20;

  std::map<std::pair<uint64_t, uint64_t>, Message> messages_;  // by stream and number
  size_t bytes_ = 0;
};

}  // namespace troika::server
