// The watch thread of a lifeline.
#include <fmt/format.h>

#include <utility>

#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/comm/diagnostics/lifeline.h"

namespace troika::comm {

namespace {

constexpr Milliseconds kAnswerTime{800};
constexpr Milliseconds kWatchPeriod{250};

}  // namespace

void Lifeline::watch() {
  std::unique_lock lock(mutex_);
  while (!closing_ && !is_cut()) {
    news_.wait_for(lock, kWatchPeriod, [&] { return closing_ || is_cut(); });
    if (closing_ || is_cut()) break;
    lock.unlock();
    warn_of_stalls();
    look_for_deadlock();
    lock.lock();
  }
  if (!is_cut()) return;
  // A rank in a call notices the loss itself and records how that call ended; wait for this.
  news_.wait_for(lock, kNewsTime, [&] { return closing_ || recorded_; });
  lock.unlock();
  write_flight_records(cause()->what());
}

void Lifeline::warn_of_stalls() {
  std::vector<StalledCall> stalls;
  std::vector<std::pair<uint32_t, MessageLog::Stalled>> messages;
  {
    const std::lock_guard lock(mutex_);
    stalls = calls_.stalled(groups_);
    for (const auto& [id, group] : groups_.all()) {
      if (group.stall_warning == Milliseconds(0)) continue;
      for (auto& stalled : group.recorder->messages().stalled(group.stall_warning)) {
        messages.emplace_back(id, std::move(stalled));
      }
    }
  }
  for (const auto& [id, progress, call] : stalls) {
    const auto who = missing(id, progress.sequence, Deadline::after(kAnswerTime));
    log::warn("[comm] {} has been waiting for {}: {}", call,
              human_seconds(static_cast<double>(progress.since.count()) / 1000),
              who.empty() ? "all ranks are in it" : who);
  }
  for (const auto& [id, stalled] : messages) {
    log::warn("[comm] {} has been waiting for {}: {}", stalled.fingerprint.describe(),
              human_seconds(static_cast<double>(stalled.since.count()) / 1000),
              other_end(id, stalled.fingerprint, Deadline::after(kAnswerTime)));
  }
}

void Lifeline::look_for_deadlock() {
  Milliseconds longest{0};
  {
    const std::lock_guard lock(mutex_);
    if (groups_.all().size() < 2) return;
    for (const auto& [id, group] : groups_.all()) {
      longest = std::max(longest, group.recorder->progress().since);
    }
  }
  const auto error = calls_.find_deadlock(
      longest, [&] { return plane_->ask_all(kAllGroups, Deadline::after(kAnswerTime)); });
  if (error) abandon(*error);
}

void Lifeline::write_flight_records(const std::string& cause) {
  std::vector<std::pair<Enrolment, RankStatuses>> groups;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(recorded_, true)) return;
    for (const auto& [id, group] : groups_.all()) {
      if (!group.flight_record.empty()) groups.emplace_back(group, groups_.known(id));
    }
  }
  news_.notify_all();
  for (auto& [group, known] : groups) write(std::move(group), known, cause);
}

void Lifeline::write_flight_record_of(uint32_t id, const std::string& cause) {
  Enrolment group;
  RankStatuses known;
  {
    const std::lock_guard lock(mutex_);
    const auto* found = groups_.find(id);
    if (!found || found->flight_record.empty()) return;
    group = *found;
    known = groups_.known(id);
  }
  write(std::move(group), known, cause);
}

void Lifeline::write(Enrolment group, const RankStatuses& known, const std::string& cause) const {
  const auto path =
      group.flight_record / fmt::format("{}-rank{}.json", group.owner.group, world_rank_);
  for (const int rank : group.ranks) {
    if (const auto at = place(rank); !at.empty()) group.owner.places.push_back(at);
  }
  try {
    make_own_folder(group.flight_record);
    write_file_atomically(path, group.recorder->to_json(group.owner, cause, known));
    log::warn("[comm] flight record: {}", path.string());
  } catch (const Error& error) {
    log::warn("[comm] no flight record: {}", error.what());
  }
}

}  // namespace troika::comm
