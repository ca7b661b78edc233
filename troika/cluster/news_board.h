// News of ranks, and who listens. For one thread at a time.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/cluster/wire.h"

namespace troika::cluster {

class NewsBoard {
 public:
  using Listener = std::function<void(int rank, const std::string& text)>;

  struct News {
    Message kind;  // lost or left
    int rank;
    std::string text;
  };

  // Whether it is new.
  bool note(const News& news);
  // Whether any news are of this rank.
  bool has(int rank) const { return ranks_.contains(rank); }
  bool has_listeners() const { return !subscriptions_.empty(); }
  void subscribe(Message kind, Listener listener);
  // The next to be told and what, so that all hear everything in the order of what happened;
  // nothing when all have heard all.
  std::optional<std::pair<Listener, News>> next();

 private:
  struct Subscription {
    Message kind;
    Listener tell;
    size_t next = 0;  // of news_
  };

  std::vector<News> news_;
  std::set<int> ranks_;  // of news_
  std::vector<Subscription> subscriptions_;
};

}  // namespace troika::cluster
