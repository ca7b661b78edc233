// Finds ranks that wait for each other in different groups.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/cluster/answers.h"

namespace troika::comm {

// A rank's account of itself in one group.
struct GroupAccount {
  // Groups without a common rank may have the same number.
  uint32_t id = 0;
  int first = 0;          // its first member, as a rank of the world
  int64_t sequence = -1;  // of the latest call that was started; -1 before the first
  // Numbers of threads of that rank: the one that is in the latest call, 0 when that has ended; and
  // the only one that has made calls so far, 0 when several have. Before the first call that is the
  // thread that made the group.
  uint64_t inside = 0;
  uint64_t caller = 0;
  std::string call;  // the one that lasts in words; empty when none does

  bool is_of(const GroupAccount& other) const { return id == other.id && first == other.first; }

  bool operator==(const GroupAccount&) const = default;
};

using Account = std::vector<GroupAccount>;
std::string to_text(const Account& account);
std::optional<Account> account_from_text(const std::string& text);

// A rank in a call that another rank does not come to.
struct Stuck {
  int rank = 0;
  uint32_t group = 0;
  int64_t sequence = 0;
  std::string call;
  int waits_for = 0;

  bool operator==(const Stuck&) const = default;
};

// A ring of ranks each of which waits in a call for the next one, which cannot come: the only
// thread that makes its calls in that group is in a call of another group. Empty when `rank`
// neither is in such a ring nor waits for one. `accounts` are by rank of the world; what is not
// known is taken for able to go on. A rank that would call a group for the first time from a second
// thread is judged wrongly.
std::vector<Stuck> find_deadlock(const std::vector<std::optional<Account>>& accounts, int rank);

// Looks for a deadlock while a call lasts. One thread may use it.
class DeadlockWatch {
 public:
  // Asks all ranks of the world for their accounts, as texts.
  using Ask = std::function<cluster::Answers()>;

  // `name` says a rank in words.
  DeadlockWatch(int rank, std::function<std::string(int rank)> name)
      : rank_(rank), name_(std::move(name)) {}

  // To be called every now and then with the longest time for which a call has been running. After
  // a second, and then each time that it has doubled, it asks twice, so that what it finds held at
  // one instant; returns the Error(usage) for a deadlock.
  std::optional<Error> look(Milliseconds longest, const Ask& ask);

 private:
  const int rank_;
  const std::function<std::string(int rank)> name_;
  Milliseconds asked_at_{0};
};

}  // namespace troika::comm
