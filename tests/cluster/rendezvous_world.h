// Ranks of one rendezvous as threads of the test.
#pragma once

#include <gmock/gmock.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "troika/base/error.h"
#include "troika/cluster/rendezvous.h"
#include "troika/cluster/socket.h"

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

inline std::shared_ptr<Rendezvous> join(const Environment& e, Milliseconds patience = kLong) {
  return Rendezvous::join(e, Deadline::after(patience));
}

// Runs each environment on a thread of its own; what each threw, "" for nothing.
inline std::vector<std::string> run_all(const std::vector<Environment>& members,
                                        const std::function<void(Rendezvous&, int)>& body,
                                        Milliseconds patience = kLong) {
  std::vector<std::string> errors(members.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body(*join(members[i], patience), members[i].rank);
      } catch (const Error& error) {
        errors[i] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

inline std::vector<Environment> world(int size, int port) {
  std::vector<Environment> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(member(rank, size, port));
  return members;
}

inline void nothing(Rendezvous&, int) {
  FAIL() << "joined a run that cannot start";
}

inline std::string place(int port) {
  return "127.0.0.1:" + std::to_string(port);
}

inline std::string this_process() {
  return "process " + std::to_string(::getpid()) + " on " + host_name();
}

}  // namespace troika::cluster
