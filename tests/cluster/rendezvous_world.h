// Runs the ranks of one rendezvous as threads of the test.
#pragma once

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/rendezvous.h"
#include "troika/net/socket.h"

namespace troika::cluster {

inline constexpr Milliseconds kLong{20'000};

inline Environment member(int rank, int world_size, int port) {
  Environment e;
  e.rank = e.local_rank = rank;
  e.world_size = e.local_world_size = world_size;
  e.master_port = port;
  e.launcher = "torchrun";
  return e;
}

// The rules for join(). A test that changes them restores the defaults at its end.
inline RelayRules relay_rules;

inline std::shared_ptr<Rendezvous> join(const Environment& e, Milliseconds patience = kLong) {
  return Rendezvous::join(e, secret_of_ranks(e), Deadline::after(patience), relay_rules);
}

// For suites that run with and without relays: most ranks reach rank 0 through other ranks, or all
// ranks connect to rank 0.
class WithAndWithoutRelays : public testing::TestWithParam<bool> {
 protected:
  WithAndWithoutRelays() {
    if (GetParam()) relay_rules = {.from_world_size = 2, .ranks_each = 2};
  }
  ~WithAndWithoutRelays() override { relay_rules = {}; }
};
inline std::string show_relays(const testing::TestParamInfo<bool>& info) {
  return info.param ? "relays" : "direct";
}

using Join = std::function<std::shared_ptr<Rendezvous>(const Environment&)>;
using Body = std::function<void(Rendezvous&, int)>;

// Runs each environment on its own thread. Returns the message that each thread threw, or "".
inline std::vector<std::string> run_all(const std::vector<Environment>& members, const Join& join,
                                        const Body& body) {
  std::vector<std::string> errors(members.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body(*join(members[i]), members[i].rank);
      } catch (const Error& error) {
        errors[i] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> run_all(const std::vector<Environment>& members, const Body& body,
                                        Milliseconds patience = kLong) {
  return run_all(
      members, [&](const auto& e) { return join(e, patience); }, body);
}
inline std::vector<std::string> run_all(const std::vector<Environment>& members,
                                        const RunSecret& secret, const Body& body,
                                        Milliseconds patience = kLong) {
  return run_all(
      members,
      [&](const auto& e) { return Rendezvous::join(e, secret, Deadline::after(patience)); }, body);
}

inline std::vector<Environment> world(int size, int port) {
  std::vector<Environment> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(member(rank, size, port));
  return members;
}

// Collects the notices of a listener; tests can wait for them.
class News {
 public:
  using Item = std::pair<int, std::string>;

  std::function<void(int, const std::string&)> listener() const {
    return [page = page_](int rank, const std::string& text) {
      const std::lock_guard lock(page->mutex);
      page->items.emplace_back(rank, text);
      page->told.notify_all();
    };
  }
  // Waits for `count` notices and returns them; fewer if they do not arrive in time.
  std::vector<Item> first(size_t count) const {
    std::unique_lock lock(page_->mutex);
    page_->told.wait_for(lock, kLong, [&] { return page_->items.size() >= count; });
    auto items = page_->items;
    items.resize(std::min(count, items.size()));
    return items;
  }
  // Returns the notices that have arrived by now.
  std::vector<Item> all() const {
    const std::lock_guard lock(page_->mutex);
    return page_->items;
  }
  bool empty() const { return all().empty(); }
  Item first() const {
    const auto items = first(1);
    return items.empty() ? Item(-1, "nothing was told") : items[0];
  }

 private:
  struct Page {
    std::mutex mutex;
    std::condition_variable told;
    std::vector<Item> items;
  };
  std::shared_ptr<Page> page_ = std::make_shared<Page>();
};

inline News losses_of(Rendezvous& meeting) {
  News news;
  meeting.on_peer_lost(news.listener());
  return news;
}
inline News departures_of(Rendezvous& meeting) {
  News news;
  meeting.on_peer_left(news.listener());
  return news;
}

// Blocks until `size` ranks have called this.
inline void all_meet(Rendezvous& meeting, const std::string& where, int size) {
  if (meeting.add(where, 1) == size) meeting.set(where + " all", "");
  meeting.get(where + " all", Deadline::after(kLong));
}

// Runs `body` in a forked process. Call it before any thread is started.
template <typename Body>
pid_t in_child(const Body& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "a child ended with: %s\n", error.what());
    ::_exit(1);
  }
  ::_exit(0);
}

inline void nothing(Rendezvous&, int) {
  FAIL() << "joined a run that cannot start";
}

inline std::string place(int port) {
  return "127.0.0.1:" + std::to_string(port);
}

inline std::string this_process() {
  return "process " + std::to_string(::getpid()) + " on " + net::host_name();
}

}  // namespace troika::cluster
