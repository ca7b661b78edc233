// The latest messages of one group on one rank, for flight records, warnings and errors.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/call/direction.h"

namespace troika::comm {

inline constexpr int kAnyRank = -1;

// The fingerprint of a message, from the view of the rank that sends or receives it.
struct MessageFingerprint {
  Direction direction = Direction::send;
  int peer = 0;  // world rank of the other end, or kAnyRank
  int tag = 0;
  bool on_edge = false;  // whether the tag belongs to an edge
  // Counts messages in this direction between these two ranks with this tag, from 0. Sender and
  // receiver give a message the same number.
  int64_t number = 0;
  int32_t type = -1;  // c10::ScalarType; -1 if dtype and count are unknown
  int64_t count = 0;
  std::source_location site = {};
  std::array<char, 48> label = {};

  // "receive #3 from rank 1, tag 0 'activations' (stage.cpp:37) of Float x 8"; an edge has "edge 0"
  // instead of "tag 0".
  std::string describe() const;
  // "stage.cpp:37"
  std::string describe_site() const;
  // "Float", or empty
  std::string type_name() const;
};

enum class MessageState : uint8_t { begun, waiting, finished, failed };

// Keeps the last kCapacity messages, and all messages that a thread waits for. All functions may be
// called from any thread.
class MessageLog {
 public:
  static constexpr size_t kCapacity = 256;

  // A recorded message, with the times of its state changes.
  struct Entry {
    int64_t id = -1;
    MessageFingerprint fingerprint;
    MessageState state = MessageState::begun;
    Clock::time_point begun, awaited, ended;
  };

  // Records that a message has started. Sets the fingerprint's number and returns an id for the
  // calls below.
  int64_t begun(MessageFingerprint& fingerprint);
  // Records a message that was sent at once: it begins and ends here. Sets the fingerprint's
  // number.
  void passed(MessageFingerprint& fingerprint);
  // Records that a thread waits for the message since `now`.
  void awaited(int64_t id, const MessageFingerprint& fingerprint, Clock::time_point now);
  void ended(int64_t id, bool well);

  // Returns how many messages have begun in the fingerprint's direction, with its peer and tag.
  int64_t count(const MessageFingerprint& fingerprint) const;
  // Returns the message that has been waited for the longest. A failed message counts: the group
  // fails with it, and other ranks may still ask what this rank waited for.
  std::optional<MessageFingerprint> waiting() const;
  // A message that a rank has waited for.
  struct Stalled {
    MessageFingerprint fingerprint;
    Milliseconds since{0};
  };
  // Returns the messages that have been waited for at least this long, each message once.
  std::vector<Stalled> stalled(Milliseconds at_least);
  // Returns the kept messages in the order in which they began.
  std::vector<Entry> entries() const;

 private:
  struct Waiting {
    int64_t id;
    MessageFingerprint fingerprint;
    Clock::time_point since;
    bool told = false;
  };
  Entry& add(MessageFingerprint& fingerprint);  // with mutex_ held
  Entry* find(int64_t id);  // with mutex_ held; null when it has been overwritten

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // a ring: id i is at i % kCapacity
  int64_t next_id_ = 0;
  std::unordered_map<uint64_t, int64_t> counts_;  // by direction, peer, tag and on_edge
  std::vector<Waiting> waiting_;                  // in the order in which they were awaited
};

}  // namespace troika::comm
