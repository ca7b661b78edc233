// The part of Lifeline about groups that fail alone.
#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "troika/comm/diagnostics/lifeline.h"

namespace troika::comm {

namespace {

// Reports a failure as a question that nobody answers.
constexpr std::string_view kNews = "failed ";
// The report has been sent by then; only a stopped rank does not confirm it.
constexpr Milliseconds kToldWithin{100};
// Failures of unknown groups are kept, because this rank may be about to join these groups.
constexpr size_t kEarlyKept = 64;

}  // namespace

std::optional<Error> Lifeline::cause(uint32_t tag_space) const {
  const std::lock_guard lock(mutex_);
  if (cause_) return cause_;
  const auto failure = failures_.find(tag_space);
  return failure == failures_.end() ? std::nullopt : std::optional(failure->second);
}

void Lifeline::abandon_group(uint32_t id, const Error& cause) {
  fail_alone(id, cause, with_kind(cause));
}

void Lifeline::abandon_group_for_program(uint32_t id) {
  const std::string why = "its program failed";
  fail_alone(id, loss_of(world_rank_, why), why);
}

void Lifeline::fail_alone(uint32_t id, const Error& cause, const std::string& why) {
  int first = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto group = groups_.find(id);
    if (group == groups_.end()) return;
    first = group->second.ranks.front();
  }
  if (!mark_failed(id, cause)) return;
  plane_->ask_all(fmt::format("{}{} {} {} {}", kNews, id, first, world_rank_, why),
                  Deadline::after(kToldWithin));
}

bool Lifeline::hear_of_failure(const std::string& words) {
  if (!words.starts_with(kNews)) return false;
  std::istringstream stream(words.substr(kNews.size()));
  uint32_t id = 0;
  int first = 0;
  int teller = 0;
  stream >> id >> first >> teller >> std::ws;
  std::string why{std::istreambuf_iterator<char>(stream), {}};
  if (teller == world_rank_) return true;
  const Error cause = loss_of(teller, why);
  {
    const std::lock_guard lock(mutex_);
    const auto group = groups_.find(id);
    if (group == groups_.end() || group->second.ranks.front() != first) {
      early_failures_.push_back({id, first, cause});
      if (early_failures_.size() > kEarlyKept) early_failures_.pop_front();
      return true;
    }
  }
  mark_failed(id, cause);
  return true;
}

bool Lifeline::mark_failed(uint32_t id, const Error& cause) {
  {
    const std::lock_guard lock(mutex_);
    const auto group = groups_.find(id);
    if (group == groups_.end()) return false;
    const uint32_t space = group->second.tag_space;
    if (!failures_.emplace(space, cause).second) return false;
    failed_[space] = true;
  }
  news_.notify_all();
  const std::lock_guard lock(wake_mutex_);
  for (const auto& [owner, wake] : wakes_) wake();
  return true;
}

}  // namespace troika::comm
