#include "troika/comm/diagnostics/failed_groups.h"

#include <algorithm>

namespace troika::comm {

namespace {

// Number of failures of unknown groups that are kept.
constexpr size_t kEarlyKept = 64;

}  // namespace

void FailedGroups::join(const Enrolment& group) {
  alone_[group.tag_space] = group.fails_alone;
  const auto early = std::ranges::find_if(early_, [&](const EarlyFailure& failure) {
    return failure.id == group.id && failure.first == group.ranks.front();
  });
  if (group.fails_alone && early != early_.end()) add(group.tag_space, early->cause);
}

bool FailedGroups::add(uint32_t tag_space, const Error& cause) {
  if (!causes_.emplace(tag_space, cause).second) return false;
  failed_[tag_space] = true;
  return true;
}

void FailedGroups::add_early(uint32_t id, int first, const Error& cause) {
  early_.push_back({id, first, cause});
  if (early_.size() > kEarlyKept) early_.pop_front();
}

std::optional<Error> FailedGroups::cause(uint32_t tag_space) const {
  const auto cause = causes_.find(tag_space);
  return cause == causes_.end() ? std::nullopt : std::optional(cause->second);
}

std::bitset<FailedGroups::kTagSpaces> FailedGroups::tag_spaces() const {
  std::bitset<kTagSpaces> spaces;
  for (const auto& [space, cause] : causes_) spaces.set(space);
  return spaces;
}

}  // namespace troika::comm
