#include "troika/cluster/rendezvous/news_board.h"

#include <algorithm>

namespace troika::cluster {

bool NewsBoard::note(const News& news) {
  const auto same = [&](const News& old) { return old.kind == news.kind && old.rank == news.rank; };
  if (has(news.rank) && std::ranges::any_of(news_, same)) return false;
  news_.push_back(news);
  ranks_.insert(news.rank);
  return true;
}

void NewsBoard::subscribe(Message kind, Listener listener) {
  subscriptions_.push_back({kind, std::move(listener)});
}

std::optional<std::pair<NewsBoard::Listener, NewsBoard::News>> NewsBoard::next() {
  while (!subscriptions_.empty()) {
    // The subscription with the oldest unread event.
    auto& first = *std::ranges::min_element(subscriptions_, {}, &Subscription::next);
    if (first.next == news_.size()) break;
    const News& news = news_[first.next++];
    if (first.kind == news.kind) return std::pair(first.tell, news);
  }
  return std::nullopt;
}

}  // namespace troika::cluster
