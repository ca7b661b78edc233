#include "troika/comm/diagnostics/message_log.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>

namespace troika::comm {

namespace {

uint64_t key_of(const MessageFingerprint& fingerprint) {
  return static_cast<uint64_t>(fingerprint.peer) << 32 |
         static_cast<uint64_t>(fingerprint.tag) << 2 |
         static_cast<uint64_t>(fingerprint.on_edge) << 1 |
         static_cast<uint64_t>(fingerprint.direction);
}

}  // namespace

std::string MessageFingerprint::describe_site() const {
  std::string_view file = site.file_name();
  if (const auto slash = file.rfind('/'); slash != file.npos) file.remove_prefix(slash + 1);
  return fmt::format("{}:{}", file, site.line());
}

std::string MessageFingerprint::describe() const {
  return fmt::format("{} #{} {} {}, {} {}{} ({}){}", name(direction), number,
                     direction == Direction::send ? "to" : "from",
                     peer == kAnyRank ? "any rank" : fmt::format("rank {}", peer),
                     on_edge ? "edge" : "tag", tag,
                     label[0] ? fmt::format(" '{}'", label.data()) : "", describe_site(),
                     type < 0 ? "" : fmt::format(" of {} x {}", type_name(), count));
}

std::string MessageFingerprint::type_name() const {
  return type < 0 ? "" : c10::toString(static_cast<c10::ScalarType>(type));
}

MessageLog::Entry* MessageLog::find(int64_t id) {
  auto& entry = entries_[static_cast<size_t>(id) % kCapacity];
  return entry.id == id ? &entry : nullptr;
}

MessageLog::Entry& MessageLog::add(MessageFingerprint& fingerprint) {
  if (entries_.empty()) entries_.resize(kCapacity);
  fingerprint.number = counts_[key_of(fingerprint)]++;
  const int64_t id = next_id_++;
  auto& entry = entries_[static_cast<size_t>(id) % kCapacity];
  entry = {id, fingerprint, MessageState::begun, Clock::now(), {}, {}};
  return entry;
}

int64_t MessageLog::begun(MessageFingerprint& fingerprint) {
  const std::lock_guard lock(mutex_);
  return add(fingerprint).id;
}

void MessageLog::passed(MessageFingerprint& fingerprint) {
  const std::lock_guard lock(mutex_);
  Entry& entry = add(fingerprint);
  entry.state = MessageState::finished;
  entry.ended = entry.begun;
}

void MessageLog::awaited(int64_t id, const MessageFingerprint& fingerprint, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back({id, fingerprint, now});
  if (auto* entry = find(id)) {
    entry->state = MessageState::waiting;
    entry->awaited = now;
  }
}

void MessageLog::ended(int64_t id, bool well) {
  const std::lock_guard lock(mutex_);
  if (well) std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.id == id; });
  if (auto* entry = find(id)) {
    entry->state = well ? MessageState::finished : MessageState::failed;
    entry->ended = Clock::now();
  }
}

int64_t MessageLog::count(const MessageFingerprint& fingerprint) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(key_of(fingerprint));
  return found == counts_.end() ? 0 : found->second;
}

std::optional<MessageFingerprint> MessageLog::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() ? std::nullopt : std::optional(waiting_.front().fingerprint);
}

std::vector<MessageLog::Stalled> MessageLog::stalled(Milliseconds at_least) {
  std::vector<Stalled> stalled;
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (auto& waiting : waiting_) {
    if (waiting.told || now - waiting.since < at_least) continue;
    waiting.told = true;
    stalled.push_back({waiting.fingerprint, std::chrono::floor<Milliseconds>(now - waiting.since)});
  }
  return stalled;
}

std::vector<MessageLog::Entry> MessageLog::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> kept;
  for (int64_t id = std::max<int64_t>(0, next_id_ - static_cast<int64_t>(kCapacity)); id < next_id_;
       ++id) {
    kept.push_back(entries_[static_cast<size_t>(id) % kCapacity]);
  }
  return kept;
}

}  // namespace troika::comm
