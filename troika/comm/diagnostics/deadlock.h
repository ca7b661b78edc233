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
#include "troika/cluster/rendezvous/answers.h"

namespace troika::comm {

// One rank's state in one group.
struct GroupAccount {
  // Groups that share no rank may have the same id.
  uint32_t id = 0;
  int first = 0;          // its first member, as a rank of the world
  int64_t sequence = -1;  // of the latest started call; -1 before the first
  // Thread numbers on that rank. `inside` is the thread in the latest call, 0 if that call has
  // ended. `caller` is the only thread that has made calls so far, 0 if several have. Before the
  // first call, `caller` is the thread that made the group.
  uint64_t inside = 0;
  uint64_t caller = 0;
  std::string call;  // the running call in words; empty when none is running

  bool is_of(const GroupAccount& other) const { return id == other.id && first == other.first; }

  bool operator==(const GroupAccount&) const = default;
};

using Account = std::vector<GroupAccount>;
std::string to_text(const Account& account);
std::optional<Account> account_from_text(const std::string& text);

// A rank in a call that waits for another rank.
struct Stuck {
  int rank = 0;
  uint32_t group = 0;
  int64_t sequence = 0;
  std::string call;
  int waits_for = 0;

  bool operator==(const Stuck&) const = default;
};

// Returns a cycle of ranks, each of which waits in a call for the next rank. The next rank cannot
// come, because the only thread that makes its calls in that group is in a call of another group.
// Empty when `rank` neither is in a cycle nor waits for one. `accounts` are by rank of the world; a
// rank without an account is assumed to make progress. The result is wrong for a rank that would
// call a group for the first time from a second thread.
std::vector<Stuck> find_deadlock(const std::vector<std::optional<Account>>& accounts, int rank);

// Looks for a deadlock while a call is running. For one thread.
class DeadlockWatch {
 public:
  // Asks all ranks of the world for their accounts, as texts.
  using Ask = std::function<cluster::Answers()>;

  // `name` returns the name of a rank for error messages.
  DeadlockWatch(int rank, std::function<std::string(int rank)> name)
      : rank_(rank), name_(std::move(name)) {}

  // Call this periodically with the time for which the longest call has been running. After one
  // second, and each time that time has doubled, it asks the ranks twice, so that the result held
  // at one instant. Returns the Error(usage) for a deadlock.
  std::optional<Error> look(Milliseconds longest, const Ask& ask);

 private:
  const int rank_;
  const std::function<std::string(int rank)> name_;
  Milliseconds asked_at_{0};
};

}  // namespace troika::comm
