// The part of Lifeline about groups that fail alone.
#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "troika/comm/diagnostics/lifeline.h"

namespace troika::comm {

namespace {

// Reports a failure as a question without an answer.
constexpr std::string_view kNews = "failed ";
// The report has been sent by then; only a stopped rank does not confirm it.
constexpr Milliseconds kToldWithin{100};

}  // namespace

std::optional<Error> Lifeline::cause(uint32_t tag_space) const {
  const std::lock_guard lock(mutex_);
  return is_cut() ? cause() : failures_.cause(tag_space);
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
    const auto* group = groups_.find(id);
    if (!group) return;
    first = group->ranks.front();
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
    const auto* group = groups_.find(id);
    if (!group || group->ranks.front() != first) {
      failures_.add_early(id, first, cause);
      return true;
    }
  }
  mark_failed(id, cause);
  return true;
}

bool Lifeline::mark_failed(uint32_t id, const Error& cause) {
  {
    const std::lock_guard lock(mutex_);
    const auto* group = groups_.find(id);
    if (!group || !failures_.add(group->tag_space, cause)) return false;
  }
  news_.notify_all();
  wakes_.call_all();
  return true;
}

}  // namespace troika::comm
