// The flight recorder: keeps the last calls of one group on one rank in memory until they are
// requested.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/call/call.h"
#include "troika/comm/diagnostics/message_log.h"

namespace troika::comm {

// A rank's state in one group: its latest call, and whether that call is still running.
struct RankStatus {
  int64_t sequence = -1;  // -1: nothing was called yet
  bool finished = true;
  bool left = false;  // the rank has left this group normally
  std::string call;   // CollectiveFingerprint::describe() of that call

  // Returns "last: barrier #3, which ended", "last: barrier #3, in which it still waits", or "it
  // has called nothing yet".
  std::string describe_last() const;

  std::string to_text() const;
  static std::optional<RankStatus> from_text(const std::string& text);
};

// By rank of a group; empty for a rank that did not answer.
using RankStatuses = std::vector<std::optional<RankStatus>>;

struct Progress {
  int64_t sequence = -1;  // of the latest call that was started; -1 before the first
  bool running = false;
  Milliseconds since{0};  // how long it has been running
  // See GroupAccount.
  uint64_t inside = 0;
  uint64_t caller = 0;
};

enum class CallState { queued, running, finished, failed };

// Keeps the last kCapacity calls. All functions may be called from any thread.
class Recorder {
 public:
  static constexpr size_t kCapacity = 256;

  // Calls are numbered from 0 without gaps. A call that need not wait for other calls is queued
  // with `at_once`; started() is then not called for it.
  void queued(const CollectiveFingerprint& fingerprint, int64_t bytes, bool at_once);
  void started(const CollectiveFingerprint& fingerprint);
  void ended(int64_t sequence, bool well);
  // A started call still runs on a device, and no thread is in it any more. ended() follows, maybe
  // after later calls have been started.
  void left_on_device(int64_t sequence);

  // Messages are not calls, and are numbered separately.
  MessageLog& messages() { return messages_; }
  const MessageLog& messages() const { return messages_; }

  // Both describe the latest started call.
  RankStatus status() const;
  Progress progress() const;

  // Identifies the group and the rank of a record.
  struct Owner {
    std::string group;
    int rank = 0;                          // of the group
    std::vector<int> world_ranks = {0};    // of each rank
    std::vector<std::string> places = {};  // of each rank: Lifeline::place(); empty without a mesh
    std::string backend;
  };
  // Returns the whole record as a JSON text: {"group", "rank", "size", "world_ranks", "places",
  // "backend", "cause", "host", "pid", "now", "statuses": [a RankStatus, or null, for each rank],
  // "calls": [{"sequence", "operation", "type", "count", "bytes", "label", "site", "state",
  // "queued", "started", "ended"}, ...], "messages": [{"direction", "peer", "tag", "edge",
  // "number", "type", "count", "label", "site", "state", "begun", "awaited", "ended"}, ...]}. Times
  // are in seconds of the system clock.
  std::string to_json(const Owner& owner, const std::string& cause,
                      const RankStatuses& statuses) const;

 private:
  static uint64_t this_thread();  // never 0

  struct Entry {
    CollectiveFingerprint fingerprint;
    int64_t bytes = 0;
    CallState state = CallState::queued;
    Clock::time_point queued, started, ended;
  };
  // Call these with mutex_ held. find() returns null when the entry has been overwritten.
  Entry* find(int64_t sequence);
  void start(const CollectiveFingerprint& fingerprint, Clock::time_point now);

  MessageLog messages_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // a ring: sequence s is at s % kCapacity
  int64_t latest_ = -1;         // sequence number of the latest queued call
  int64_t current_ = -1;        // sequence number of the latest started call
  Clock::time_point current_start_;
  // A copy, because calls queued later may overwrite the entry.
  CollectiveFingerprint current_fingerprint_;
  bool running_ = false;
  bool current_well_ = false;  // ended without an error
  uint64_t inside_ = 0;        // the thread in the current call; 0: it runs on a device
  uint64_t caller_ = this_thread();
};

}  // namespace troika::comm
