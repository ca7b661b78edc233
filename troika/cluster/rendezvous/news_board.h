// Events (lost ranks, departures) and their listeners. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/cluster/rendezvous/wire.h"

namespace troika::cluster {

class NewsBoard {
 public:
  using Listener = std::function<void(int rank, const std::string& text)>;

  struct News {
    Message kind;  // lost or left
    int rank;
    std::string text;
  };

  // Returns whether the event is new.
  bool note(const News& news);
  // Whether there is any event about this rank.
  bool has(int rank) const { return ranks_.contains(rank); }
  bool has_listeners() const { return !subscriptions_.empty(); }
  void subscribe(Message kind, Listener listener);
  // Returns the next listener to call and its event, or nullopt if all listeners are up to date.
  // Listeners get all events in the order of occurrence.
  std::optional<std::pair<Listener, News>> next();

 private:
  struct Subscription {
    Message kind;
    Listener tell;
    size_t next = 0;  // index into news_
  };

  std::vector<News> news_;
  std::set<int> ranks_;  // ranks that occur in news_
  std::vector<Subscription> subscriptions_;
};

}  // namespace troika::cluster
