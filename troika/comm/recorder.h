// The flight recorder: the last calls of one group on one rank, in memory until somebody asks.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/call.h"
#include "troika/comm/message_log.h"

namespace troika::comm {

// A rank's account of itself: its latest call, and whether that is still going on.
struct Standing {
  int64_t sequence = -1;  // -1: nothing was called yet
  bool finished = true;
  bool left = false;  // the rank has parted from this group in peace
  std::string call;   // Print::describe() of that call

  // "last: barrier #3, which ended", or in which it still waits; "it has called nothing yet".
  std::string describe_last() const;

  std::string to_text() const;
  static std::optional<Standing> from_text(const std::string& text);
};

// By rank of a group; nothing for one that did not answer.
using Standings = std::vector<std::optional<Standing>>;

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

  // Calls are numbered from 0 without gaps. A call that need not wait for others is queued with
  // `at_once`, and then started() is not called for it.
  void queued(const Print& print, int64_t bytes, bool at_once);
  void started(const Print& print);
  void ended(int64_t sequence, bool well);

  // Messages are no calls: they are numbered for themselves.
  MessageLog& messages() { return messages_; }
  const MessageLog& messages() const { return messages_; }

  // These are of the latest call that was started.
  Standing standing() const;
  Progress progress() const;

  // Whose record it is.
  struct Owner {
    std::string group;
    int rank = 0;                          // of the group
    std::vector<int> world_ranks = {0};    // of each rank
    std::vector<std::string> places = {};  // of each rank: Lifeline::place(); none without a mesh
    std::string backend;
  };
  // Everything as a JSON text: {"group", "rank", "size", "world_ranks", "places", "backend",
  // "cause", "host", "pid", "now", "standings": [a standing, or null, for each rank], "calls":
  // [{"sequence", "operation", "type", "count", "bytes", "label", "site", "state", "queued",
  // "started", "ended"}, ...], "messages": [{"direction", "peer", "tag", "edge", "number", "type",
  // "count", "label", "site", "state", "begun", "awaited", "ended"}, ...]}, times in seconds of the
  // system clock.
  std::string to_json(const Owner& owner, const std::string& cause,
                      const Standings& standings) const;

 private:
  static uint64_t this_thread();  // never 0

  struct Entry {
    Print print;
    int64_t bytes = 0;
    CallState state = CallState::queued;
    Clock::time_point queued, started, ended;
  };
  // Call these with mutex_ held. find() gives nothing when the entry has been overwritten.
  Entry* find(int64_t sequence);
  void start(const Print& print, Clock::time_point now);

  MessageLog messages_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // a ring: sequence s is at s % kCapacity
  int64_t latest_ = -1;         // queued
  int64_t current_ = -1;        // started
  Clock::time_point current_start_;
  Print current_print_;  // its entry may be overwritten by calls queued behind it
  bool running_ = false;
  bool current_well_ = false;  // ended without an error
  uint64_t inside_ = 0;        // the thread that started the current call
  uint64_t caller_ = this_thread();
};

}  // namespace troika::comm
