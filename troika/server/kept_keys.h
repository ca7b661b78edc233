// Lists of keys that a server keeps, so that workers need not send them again. Internal to the
// room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "troika/server/table.h"

namespace troika::server {

// The least recently used lists make room for new ones. Not thread-safe.
class KeptKeys {
 public:
  explicit KeptKeys(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Returns the list of a signature; null if it is not kept. Valid until the next call.
  const std::vector<Key>* find(uint64_t signature) {
    const auto found = places_.find(signature);
    if (found == places_.end()) return nullptr;
    lists_.splice(lists_.begin(), lists_, found->second);
    return &found->second->second;
  }
  // Returns whether the list is now kept. It is not if it is empty or too long, or if another list
  // has the same signature.
  bool add(uint64_t signature, std::span<const Key> keys) {
    if (const auto* const kept = find(signature)) return std::ranges::equal(*kept, keys);
    if (keys.empty() || bytes_of(keys) > most_bytes_) return false;
    while (bytes_ + bytes_of(keys) > most_bytes_) {
      bytes_ -= bytes_of(lists_.back().second);
      places_.erase(lists_.back().first);
      lists_.pop_back();
    }
    lists_.emplace_front(signature, std::vector<Key>(keys.begin(), keys.end()));
    places_[signature] = lists_.begin();
    bytes_ += bytes_of(keys);
    return true;
  }
  size_t bytes() const { return bytes_; }

 private:
  using List = std::list<std::pair<uint64_t, std::vector<Key>>>;

  // The nodes and allocations of an entry take about 128 bytes besides the keys.
  static size_t bytes_of(std::span<const Key> keys) { return keys.size_bytes() + 128; }

  const size_t most_bytes_;
  size_t bytes_ = 0;
  List lists_;  // the most recently used one first
  std::map<uint64_t, List::iterator> places_;
};

}  // namespace troika::server
