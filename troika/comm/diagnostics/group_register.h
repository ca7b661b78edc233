// The groups of a rank, as its lifeline needs them.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/diagnostics/deadlock.h"
#include "troika/comm/diagnostics/recorder.h"

namespace troika::comm {

// A group. `ranks` are the members' world ranks.
struct Enrolment {
  uint32_t id = 0;
  uint32_t tag_space = 0;
  std::vector<int> ranks;
  std::shared_ptr<Recorder> recorder;
  Recorder::Owner owner;
  Milliseconds stall_warning{0};
  std::filesystem::path flight_record;
  bool fails_alone = false;
};

// The groups that this rank is in, and the last statuses of those it has left. Not thread-safe.
class GroupRegister {
 public:
  void add(Enrolment group);
  // Removes a group. Keeps this rank's last status in it, to answer questions.
  void remove(uint32_t id);
  // Null if this rank is not in the group.
  const Enrolment* find(uint32_t id) const;
  const std::map<uint32_t, Enrolment>& all() const { return groups_; }

  // Returns this rank's status in a group, also after it has left the group.
  RankStatus status(uint32_t id) const;
  // Returns this rank's account of all its groups.
  Account account() const;
  // Returns this rank's last statuses in the groups it has left, as text for
  // DepartedRanks::add().
  std::string farewell() const;

  // The statuses of all members, as they were last asked for; empty before.
  void set_known(uint32_t id, RankStatuses statuses) { known_[id] = std::move(statuses); }
  RankStatuses known(uint32_t id) const;

  // Returns an id that no group of this rank has had.
  int64_t next_id() const { return last_id_ + 1; }
  // Marks an id as used.
  void take_id(int64_t id);

 private:
  std::map<uint32_t, Enrolment> groups_;
  std::deque<std::pair<uint32_t, RankStatus>> left_;  // the latest, oldest first
  std::map<uint32_t, RankStatuses> known_;
  int64_t last_id_ = 0;
};

}  // namespace troika::comm
