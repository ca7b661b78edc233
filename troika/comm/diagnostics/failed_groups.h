// The groups of a rank that fail alone, and their failures.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "troika/base/error.h"
#include "troika/comm/diagnostics/group_register.h"

namespace troika::comm {

// A group is marked by its tag space, which is not reused after a failure. is_failed() and
// fails_alone() may be called from any thread, the other functions by one thread at a time.
class FailedGroups {
 public:
  static constexpr size_t kTagSpaces = 512;

  bool is_failed(uint32_t tag_space) const { return failed_[tag_space]; }
  bool fails_alone(uint32_t tag_space) const { return alone_[tag_space]; }

  // Called when this rank joins a group. If the group's failure was reported before (add_early()),
  // marks its tag space as failed.
  void join(const Enrolment& group);
  // Returns false if the group has failed before.
  bool add(uint32_t tag_space, const Error& cause);
  // Keeps the failure of a group that this rank has not joined yet, and may never join. `first` is
  // the group's first member.
  void add_early(uint32_t id, int first, const Error& cause);
  std::optional<Error> cause(uint32_t tag_space) const;
  // The tag spaces of the groups that have failed.
  std::bitset<kTagSpaces> tag_spaces() const;

 private:
  struct EarlyFailure {
    uint32_t id;
    int first;
    Error cause;
  };

  std::array<std::atomic<bool>, kTagSpaces> alone_ = {};
  std::array<std::atomic<bool>, kTagSpaces> failed_ = {};
  std::map<uint32_t, Error> causes_;  // by tag space
  std::deque<EarlyFailure> early_;    // the latest, oldest first
};

}  // namespace troika::comm
