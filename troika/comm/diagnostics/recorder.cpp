#include "troika/comm/diagnostics/recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <thread>

#include "troika/base/error.h"

namespace troika::comm {

namespace {

using nlohmann::json;

constexpr std::array<const char*, 4> kStates{"queued", "running", "finished", "failed"};
constexpr std::array<const char*, 4> kMessageStates{"begun", "waiting", "finished", "failed"};

// Converts times of the steady clock to the system clock.
class SystemTime {
 public:
  json of(Clock::time_point at) const {
    if (at == Clock::time_point()) return nullptr;
    const auto system =
        now_ - std::chrono::duration_cast<std::chrono::system_clock::duration>(steady_now_ - at);
    return std::chrono::duration<double>(system.time_since_epoch()).count();
  }
  json now() const { return of(steady_now_); }

 private:
  const Clock::time_point steady_now_ = Clock::now();
  const std::chrono::system_clock::time_point now_ = std::chrono::system_clock::now();
};

json to_json(const RankStatus& status) {
  return {{"sequence", status.sequence},
          {"finished", status.finished},
          {"left", status.left},
          {"call", status.call}};
}

}  // namespace

std::string RankStatus::describe_last() const {
  if (sequence < 0) return "it has called nothing yet";
  return fmt::format("last: {}, {}", call, finished ? "which ended" : "in which it still waits");
}

std::string RankStatus::to_text() const {
  // Labels may contain bytes that are not UTF-8.
  return to_json(*this).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<RankStatus> RankStatus::from_text(const std::string& text) {
  const auto read = json::parse(text, nullptr, false);
  if (!read.is_object()) return std::nullopt;
  return RankStatus{read.value("sequence", int64_t{-1}), read.value("finished", true),
                    read.value("left", false), read.value("call", "")};
}

uint64_t Recorder::this_thread() {
  return std::hash<std::thread::id>()(std::this_thread::get_id()) | 1;
}

Recorder::Entry* Recorder::find(int64_t sequence) {
  auto& entry = entries_[static_cast<size_t>(sequence) % kCapacity];
  return entry.fingerprint.sequence == sequence ? &entry : nullptr;
}

void Recorder::queued(const CollectiveFingerprint& fingerprint, int64_t bytes, bool at_once) {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) entries_.resize(kCapacity);
  auto& entry = entries_[static_cast<size_t>(fingerprint.sequence) % kCapacity];
  const auto now = Clock::now();
  entry = {fingerprint, bytes, CallState::queued, now, {}, {}};
  const uint64_t thread = this_thread();
  caller_ = latest_ < 0 || caller_ == thread ? thread : 0;
  latest_ = fingerprint.sequence;
  if (at_once) start(fingerprint, now);
}

void Recorder::started(const CollectiveFingerprint& fingerprint) {
  const std::lock_guard lock(mutex_);
  start(fingerprint, Clock::now());
}

void Recorder::start(const CollectiveFingerprint& fingerprint, Clock::time_point now) {
  current_ = fingerprint.sequence;
  current_fingerprint_ = fingerprint;
  current_start_ = now;
  running_ = true;
  inside_ = this_thread();
  if (auto* entry = find(current_)) {
    entry->state = CallState::running;
    entry->started = current_start_;
  }
}

void Recorder::ended(int64_t sequence, bool well) {
  const std::lock_guard lock(mutex_);
  if (sequence == current_) {
    running_ = false;
    current_well_ = well;
  }
  if (auto* entry = find(sequence)) {
    entry->state = well ? CallState::finished : CallState::failed;
    entry->ended = Clock::now();
  }
}

void Recorder::left_on_device(int64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (sequence == current_) inside_ = 0;
}

RankStatus Recorder::status() const {
  const std::lock_guard lock(mutex_);
  if (current_ < 0) return {};
  return {current_, !running_ && current_well_, false, current_fingerprint_.describe()};
}

Progress Recorder::progress() const {
  const std::lock_guard lock(mutex_);
  if (!running_) return {.sequence = current_, .caller = caller_};
  return {current_, true, std::chrono::floor<Milliseconds>(Clock::now() - current_start_), inside_,
          caller_};
}

std::string Recorder::to_json(const Owner& owner, const std::string& cause,
                              const RankStatuses& statuses) const {
  const SystemTime time;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  json record = {{"group", owner.group},
                 {"rank", owner.rank},
                 {"size", owner.world_ranks.size()},
                 {"world_ranks", owner.world_ranks},
                 {"places", owner.places},
                 {"backend", owner.backend},
                 {"cause", cause},
                 {"host", host.data()},
                 {"pid", ::getpid()},
                 {"now", time.now()},
                 {"statuses", json::array()},
                 {"calls", json::array()},
                 {"messages", json::array()}};
  for (const auto& status : statuses) {
    record["statuses"].push_back(status ? comm::to_json(*status) : json());
  }
  const std::lock_guard lock(mutex_);
  const auto kept = static_cast<int64_t>(kCapacity);
  for (int64_t s = std::max<int64_t>(0, latest_ - kept + 1); s <= latest_; ++s) {
    const auto& [fingerprint, bytes, state, queued, started, ended] =
        entries_[static_cast<size_t>(s) % kCapacity];
    record["calls"].push_back(
        {{"sequence", fingerprint.sequence},
         {"operation", name(static_cast<Operation>(fingerprint.operation))},
         {"type", fingerprint.type < 0
                      ? ""
                      : c10::toString(static_cast<c10::ScalarType>(fingerprint.type))},
         {"count", fingerprint.count},
         {"bytes", bytes},
         {"label", fingerprint.label},
         {"site", fingerprint.site},
         {"state", kStates.at(static_cast<size_t>(state))},
         {"queued", time.of(queued)},
         {"started", time.of(started)},
         {"ended", time.of(ended)}});
  }
  for (const auto& [id, fingerprint, state, begun, awaited, ended] : messages_.entries()) {
    record["messages"].push_back({{"direction", name(fingerprint.direction)},
                                  {"peer", fingerprint.peer},
                                  {"tag", fingerprint.tag},
                                  {"edge", fingerprint.on_edge},
                                  {"number", fingerprint.number},
                                  {"type", fingerprint.type_name()},
                                  {"count", fingerprint.count},
                                  {"label", fingerprint.label.data()},
                                  {"site", fingerprint.describe_site()},
                                  {"state", kMessageStates.at(static_cast<size_t>(state))},
                                  {"begun", time.of(begun)},
                                  {"awaited", time.of(awaited)},
                                  {"ended", time.of(ended)}});
  }
  return record.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace troika::comm
