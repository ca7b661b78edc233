#include "troika/layout/portions.h"

#include <algorithm>
#include <string>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

Portions::Portions(uint64_t count, int backups)
    : backups_(backups), committers_(count), losses_(count) {
  if (count == 0 || backups < 0) {
    refuse("portions of a batch",
           std::to_string(count) + " with " + std::to_string(backups) + " backups",
           "at least 1 portion and 0 backups");
  }
}

void Portions::begin() {
  std::ranges::fill(committers_, std::nullopt);
  std::ranges::fill(losses_, 0);
  committed_ = 0;
  busy_.clear();
  computing_.clear();
  open_.clear();
  for (uint64_t portion = 0; portion < losses_.size(); ++portion) {
    open_.insert(open_.end(), portion);
  }
}

std::optional<uint64_t> Portions::next(uint64_t worker) {
  std::optional<uint64_t> portion;
  if (!open_.empty()) {
    const auto last = last_.find(worker);
    const bool follows = last != last_.end() && open_.contains(last->second + 1);
    portion = follows ? last->second + 1 : *open_.begin();
    open_.erase(*portion);
  } else {
    // The portion that the fewest workers compute.
    size_t fewest = static_cast<size_t>(backups_) + 1;
    for (const auto& [candidate, workers] : computing_) {
      if (workers.size() >= fewest) continue;
      fewest = workers.size();
      portion = candidate;
    }
    if (!portion) return std::nullopt;
    ++backups_begun_;
  }
  busy_[worker] = *portion;
  computing_[*portion].insert(worker);
  last_[worker] = *portion;
  return portion;
}

bool Portions::commit(uint64_t worker, int64_t step, double loss) {
  const auto found = busy_.find(worker);
  if (found == busy_.end()) return false;
  const uint64_t portion = found->second;
  busy_.erase(found);
  if (committers_[portion]) return false;
  computing_.erase(portion);
  open_.erase(portion);
  committers_[portion] = {worker, step};
  losses_[portion] = loss;
  ++committed_;
  return true;
}

void Portions::release(uint64_t worker) {
  const auto found = busy_.find(worker);
  if (found == busy_.end()) return;
  const uint64_t portion = found->second;
  busy_.erase(found);
  const auto workers = computing_.find(portion);
  if (workers == computing_.end()) return;
  workers->second.erase(worker);
  if (!workers->second.empty()) return;
  computing_.erase(workers);
  open_.insert(portion);
}

uint64_t Portions::lose(uint64_t worker, int64_t finished) {
  release(worker);
  uint64_t lost = 0;
  for (uint64_t portion = 0; portion < losses_.size(); ++portion) {
    const auto& committer = committers_[portion];
    if (!committer || committer->worker != worker || committer->step <= finished) continue;
    committers_[portion] = std::nullopt;
    losses_[portion] = 0;
    // Another worker may still be computing it.
    for (const auto& [other, busy_with] : busy_) {
      if (busy_with == portion) computing_[portion].insert(other);
    }
    if (!computing_.contains(portion)) open_.insert(portion);
    --committed_;
    ++lost;
  }
  return lost;
}

double Portions::loss() const {
  double sum = 0;
  for (const double loss : losses_) sum += loss;
  return sum;
}

}  // namespace troika::layout
