#include "troika/comm/diagnostics/deadlock.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troika::comm {

namespace {

using nlohmann::json;

// A thread that is in a call.
struct Waiter {
  int rank;
  const GroupAccount* group;
  // Index of a waiter that it waits for and that cannot come; -1: it may make progress.
  int next = -1;
};

// Returns the rank's account of that group; null if the rank is not a member or is unknown.
const GroupAccount* account_in(const GroupAccount& group, const std::optional<Account>& account) {
  if (!account) return nullptr;
  const auto is_it = [&](const GroupAccount& theirs) { return theirs.is_of(group); };
  const auto found = std::ranges::find_if(*account, is_it);
  return found == account->end() ? nullptr : &*found;
}

class Search {
 public:
  explicit Search(const std::vector<std::optional<Account>>& accounts) : accounts_(accounts) {
    for (size_t r = 0; r < accounts.size(); ++r) {
      if (!accounts[r]) continue;
      for (const auto& group : *accounts[r]) {
        if (group.inside != 0) waiters_.push_back({static_cast<int>(r), &group});
      }
    }
    stuck_.assign(waiters_.size(), true);
    // All waiters count as stuck until one may make progress; then the waiters that wait for it
    // alone.
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t w = 0; w < waiters_.size(); ++w) {
        if (!stuck_[w]) continue;
        waiters_[w].next = blocker_of(waiters_[w]);
        if (waiters_[w].next >= 0) continue;
        stuck_[w] = false;
        changed = true;
      }
    }
  }

  // Returns the cycle at the end of the chain of waits from `rank`, starting at its lowest rank.
  std::vector<Stuck> ring_of(int rank) const {
    size_t at = 0;
    while (at < waiters_.size() && (waiters_[at].rank != rank || !stuck_[at])) ++at;
    if (at == waiters_.size()) return {};
    for (size_t steps = 0; steps < waiters_.size(); ++steps) at = next(at);
    std::vector<Stuck> ring;
    const size_t first = at;
    do {
      const auto& [waits, group, _] = waiters_[at];
      at = next(at);
      ring.push_back({waits, group->id, group->sequence, group->call, waiters_[at].rank});
    } while (at != first);
    std::ranges::rotate(ring, std::ranges::min_element(ring, {}, &Stuck::rank));
    return ring;
  }

 private:
  size_t next(size_t waiter) const { return static_cast<size_t>(waiters_[waiter].next); }

  // Returns a stuck waiter that keeps a rank from coming to that call.
  int blocker_of(const Waiter& waiter) const {
    for (size_t rank = 0; rank < accounts_.size(); ++rank) {
      const auto* theirs = account_in(*waiter.group, accounts_[rank]);
      if (!theirs || theirs->sequence >= waiter.group->sequence || theirs->caller == 0) continue;
      const int number = static_cast<int>(rank);
      for (const auto& other : std::ranges::equal_range(waiters_, number, {}, &Waiter::rank)) {
        const auto w = &other - waiters_.data();
        if (stuck_[static_cast<size_t>(w)] && other.group->inside == theirs->caller) {
          return static_cast<int>(w);
        }
      }
    }
    return -1;
  }

  const std::vector<std::optional<Account>>& accounts_;
  std::vector<Waiter> waiters_;  // by rank
  std::vector<bool> stuck_;      // by waiter
};

std::vector<Stuck> ask_and_find(const DeadlockWatch::Ask& ask, int rank) {
  std::vector<std::optional<Account>> accounts;
  for (const auto& text : ask().text) {
    accounts.push_back(text ? account_from_text(*text) : std::nullopt);
  }
  return find_deadlock(accounts, rank);
}

}  // namespace

std::string to_text(const Account& account) {
  json groups = json::array();
  for (const auto& [id, first, sequence, inside, caller, call] : account) {
    groups.push_back({id, first, sequence, inside, caller, call});
  }
  // Labels may contain bytes that are not UTF-8.
  return groups.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<Account> account_from_text(const std::string& text) try {
  Account account;
  const auto groups = json::parse(text);
  if (!groups.is_array()) return std::nullopt;
  for (const auto& group : groups) {
    account.push_back({.id = group.at(0).get<uint32_t>(),
                       .first = group.at(1).get<int>(),
                       .sequence = group.at(2).get<int64_t>(),
                       .inside = group.at(3).get<uint64_t>(),
                       .caller = group.at(4).get<uint64_t>(),
                       .call = group.at(5).get<std::string>()});
  }
  return account;
} catch (const json::exception&) {
  return std::nullopt;
}

std::vector<Stuck> find_deadlock(const std::vector<std::optional<Account>>& accounts, int rank) {
  return Search(accounts).ring_of(rank);
}

std::optional<Error> DeadlockWatch::look(Milliseconds longest, const Ask& ask) {
  if (longest < Milliseconds(1000)) {
    asked_at_ = Milliseconds(0);
    return std::nullopt;
  }
  if (longest < 2 * asked_at_) return std::nullopt;
  asked_at_ = longest;
  const auto ring = ask_and_find(ask, rank_);
  if (ring.empty() || ring != ask_and_find(ask, rank_)) return std::nullopt;
  std::vector<std::string> lines;
  for (const auto& stuck : ring) {
    lines.push_back(fmt::format("{} waits in {} for {}", name_(stuck.rank), stuck.call,
                                name_(stuck.waits_for)));
  }
  return Error("comm", ErrorKind::usage,
               {.what = "ranks wait for each other in calls of different groups",
                .got = fmt::format("{}", fmt::join(lines, "; ")),
                .expected = "the same order of calls on every rank",
                .hint = "make each collective on all ranks of its group, in hooks too"});
}

}  // namespace troika::comm
