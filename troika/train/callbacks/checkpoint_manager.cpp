#include "troika/train/callbacks/checkpoint_manager.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace troika::train {

namespace {

bool contains(const std::vector<CheckpointManager::Kept>& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(), [&](const auto& kept) { return kept.name == name; });
}

}  // namespace

double CheckpointManager::comparable(double score) const {
  return std::isnan(score) ? monitor_.worst() : score;
}

bool CheckpointManager::is_better(double score, const Kept& kept) const {
  return monitor_.name.empty() || monitor_.is_better(comparable(score), kept.score);
}

bool CheckpointManager::is_among_best(double score) const {
  const auto& best = current();
  return !is_full(best) || (!best.empty() && is_better(score, best.back()));
}

std::optional<double> CheckpointManager::proposal() const {
  // Without a metric, the latest checkpoint is the best, whether or not it was proposed.
  return monitor_.name.empty() ? 0.0 : proposed_;
}

bool CheckpointManager::is_full(const std::vector<Kept>& best) const {
  return save_top_k_ >= 0 && static_cast<int64_t>(best.size()) >= save_top_k_;
}

CheckpointManager::Place CheckpointManager::worst_of(const std::vector<Kept>& best) const {
  if (monitor_.name.empty()) return std::prev(best.end());
  return std::find_if(best.begin(), best.end(),
                      [&](const Kept& kept) { return kept.score == best.back().score; });
}

std::vector<CheckpointManager::Kept> CheckpointManager::next() const {
  auto result = current();
  const auto score = proposal();
  if (!score || save_top_k_ == 0) return result;
  while (is_full(result)) result.erase(worst_of(result));
  const auto place = std::find_if(result.begin(), result.end(),
                                  [&](const Kept& kept) { return is_better(*score, kept); });
  result.insert(place, {"", comparable(*score)});
  return result;
}

void CheckpointManager::begin_writing() {
  being_written_ = next();
  proposed_.reset();
}

std::vector<std::string> CheckpointManager::finish_writing(const std::string& name) {
  auto candidates = std::exchange(others_, {});
  for (const auto& kept : best_) candidates.push_back(kept.name);
  best_ = *std::exchange(being_written_, std::nullopt);
  for (auto& kept : best_) {
    if (kept.name.empty()) kept.name = name;
  }
  latest_ = name;
  if (!contains(best_, name)) others_.push_back(name);
  std::erase_if(candidates, [&](const std::string& candidate) {
    return candidate == name || chosen_.contains(candidate) || contains(best_, candidate);
  });
  return candidates;
}

CheckpointManager::State CheckpointManager::state() const {
  State result{.best = next(), .others = others_, .chosen = {chosen_.begin(), chosen_.end()}};
  for (const auto& kept : best_) {
    if (!contains(result.best, kept.name)) result.others.push_back(kept.name);
  }
  return result;
}

void CheckpointManager::resume(const std::string& name, State state,
                               const std::set<std::string>& present, bool may_remove) {
  best_ = std::move(state.best);
  for (auto& kept : best_) {
    if (kept.name.empty()) kept.name = name;
  }
  std::erase_if(best_, [&](const Kept& kept) { return !present.contains(kept.name); });
  latest_ = name;
  others_.clear();
  chosen_ = {state.chosen.begin(), state.chosen.end()};
  std::erase_if(chosen_, [&](const std::string& other) { return !present.contains(other); });
  if (!may_remove) {
    chosen_.insert(name);
    return;
  }
  others_ = std::move(state.others);
  std::erase_if(others_, [&](const std::string& other) { return !present.contains(other); });
  if (!contains(best_, name)) others_.push_back(name);
}

}  // namespace troika::train
