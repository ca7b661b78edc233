#include "troika/comm/diagnostics/group_register.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troika::comm {

namespace {

// Number of former groups whose last status a rank keeps.
constexpr size_t kLeftKept = 1024;

}  // namespace

void GroupRegister::add(Enrolment group) {
  const uint32_t id = group.id;
  groups_[id] = std::move(group);
}

void GroupRegister::remove(uint32_t id) {
  const auto group = groups_.find(id);
  RankStatus last = group->second.recorder->status();
  last.left = true;
  left_.emplace_back(id, std::move(last));
  if (left_.size() > kLeftKept) left_.pop_front();
  groups_.erase(group);
  known_.erase(id);
}

const Enrolment* GroupRegister::find(uint32_t id) const {
  const auto group = groups_.find(id);
  return group == groups_.end() ? nullptr : &group->second;
}

RankStatus GroupRegister::status(uint32_t id) const {
  if (const auto* group = find(id)) return group->recorder->status();
  const auto last = std::ranges::find(left_, id, &std::pair<uint32_t, RankStatus>::first);
  return last == left_.end() ? RankStatus{} : last->second;
}

Account GroupRegister::account() const {
  Account account;
  for (const auto& [id, group] : groups_) {
    const auto progress = group.recorder->progress();
    account.push_back({.id = id,
                       .first = group.ranks.front(),
                       .sequence = progress.sequence,
                       .inside = progress.inside,
                       .caller = progress.caller,
                       .call = progress.running ? group.recorder->status().call : ""});
  }
  return account;
}

std::string GroupRegister::farewell() const {
  nlohmann::json groups = nlohmann::json::object();
  for (const auto& [id, last] : left_) groups[std::to_string(id)] = last.to_text();
  return groups.dump();
}

RankStatuses GroupRegister::known(uint32_t id) const {
  const auto known = known_.find(id);
  return known == known_.end() ? RankStatuses{} : known->second;
}

void GroupRegister::take_id(int64_t id) {
  last_id_ = std::max(last_id_, id);
}

}  // namespace troika::comm
