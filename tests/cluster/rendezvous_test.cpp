#include "troika/cluster/rendezvous/rendezvous.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <future>

#include "tests/cluster/rendezvous_world.h"
#include "tests/support/errors.h"
#include "troika/cluster/discovery/listen.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/net/descriptor.h"
#include "troika/net/socket.h"

namespace troika::cluster {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::StartsWith;

class Worlds : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rendezvous, Worlds, testing::Values(1, 2, 3, 4, 7));

TEST_P(Worlds, JoinSetGetAddLeave) {
  const int size = GetParam();
  const std::string binary("a\0b\xff\n", 5);
  std::atomic<int64_t> largest = 0;
  const auto errors = run_all(world(size, free_port()), [&](Rendezvous& meeting, int rank) {
    std::atomic<bool> lost = false;
    meeting.on_peer_lost([&](int, const std::string&) { lost = true; });
    meeting.set("from " + std::to_string(rank), binary + std::to_string(rank));
    for (int peer = 0; peer < size; ++peer) {
      EXPECT_EQ(meeting.get("from " + std::to_string(peer), Deadline::after(kLong)),
                binary + std::to_string(peer));
    }
    for (int i = 0; i < 100; ++i) {
      const int64_t sum = meeting.add("count", 2);
      for (int64_t seen = largest; seen < sum && !largest.compare_exchange_weak(seen, sum);) {
      }
    }
    meeting.leave();
    EXPECT_FALSE(lost);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(largest, 200 * size);
}

TEST(Rendezvous, AloneNeedsNoPort) {
  const auto meeting = join(Environment{});
  EXPECT_GT(meeting->port(), 0);
  meeting->set("k", "v");
  EXPECT_EQ(meeting->get("k", Deadline::after(kLong)), "v");
  EXPECT_EQ(meeting->add("n", -3), -3);
}

TEST(Rendezvous, LargeValuesArriveWhole) {
  // More than a socket takes at once.
  std::string large(16 << 20, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761 >> 13);
  const auto errors = run_all(world(2, free_port()), [&](Rendezvous& meeting, int rank) {
    if (rank == 1) meeting.set("large", large);
    EXPECT_TRUE(meeting.get("large", Deadline::after(kLong)) == large);
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Rendezvous, RanksMayComeBeforeTheServer) {
  const int port = free_port();
  std::promise<void> started;
  std::thread early([&] {
    started.set_value();
    const auto meeting = join(member(1, 2, port));
    EXPECT_EQ(meeting->get("k", Deadline::after(kLong)), "v");
    meeting->leave();
  });
  started.get_future().wait();
  const auto meeting = join(member(0, 2, port));
  meeting->set("k", "v");
  meeting->leave();
  early.join();
}

TEST(Rendezvous, PortTaken) {
  const PortRange ephemeral = ephemeral_range();
  for (const int wanted : {0, free_port()}) {
    const Listening taken = listen_for("127.0.0.1", wanted);
    const int port = taken.port;
    const std::string hint =
        wanted == 0 ? fmt::format(
                          ", outside {}-{}, where any connection of any program may take a "
                          "port",
                          ephemeral.low, ephemeral.high)
                    : ", or end the program that has it";
    EXPECT_ERROR(join(member(0, 2, port)), ErrorKind::usage,
                 "[cluster] cannot listen on port " + std::to_string(port) +
                     "; got address already in use, expected a free port (set MASTER_PORT, the "
                     "same on all ranks" +
                     hint + ")");
  }
}

TEST(Rendezvous, TwoProcessesOfOneRank) {
  const int port = free_port();
  auto members = world(3, port);
  members[2].rank = 1;
  const auto errors = run_all(members, nothing);
  EXPECT_THAT(
      errors,
      Each("[cluster] two processes are rank 1; got " + this_process() + " and " + this_process() +
           ", expected one process for each rank (each rank needs its own RANK; is a "
           "variable exported to all of them?)"));
}

TEST(Rendezvous, DisagreementOnTheWorldSize) {
  const int port = free_port();
  const std::vector<Environment> members{member(0, 3, port), member(2, 4, port)};
  EXPECT_THAT(run_all(members, nothing),
              Each("[cluster] ranks disagree on the number of ranks; got 4 from rank 2 (" +
                   this_process() + "), expected 3 as rank 0 was told"));
}

TEST(Rendezvous, MissingRanksAreNamedEverywhereAtTheFirstDeadline) {
  const int port = free_port();
  auto members = world(7, port);
  members.erase(members.begin() + 2, members.begin() + 6);
  const auto start = Clock::now();
  std::vector<std::string> errors(members.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        // Rank 6 is the impatient one.
        join(members[i], i == 2 ? Milliseconds(1000) : kLong);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::timeout);
        errors[i] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(errors, Each("[cluster] ranks did not arrive within 1 s; got 0, 1, 6, expected "
                           "also 2-5 (they must reach rank 0 at " +
                           place(port) + ")"));
  EXPECT_LT(Clock::now() - start, kLong);
}

TEST(Rendezvous, MissingRankZeroIsNamed) {
  const int port = free_port();
  EXPECT_ERROR(join(member(1, 2, port), Milliseconds(200)), ErrorKind::timeout,
               "[cluster] rank 0 is not reachable at " + place(port) +
                   " within 0.2 s; got connection refused, expected rank 0 listening there "
                   "(MASTER_ADDR must name its machine, and MASTER_PORT be open on it)");
  auto lost = member(1, 2, port);
  lost.master_address = "no-such-host.invalid";
  EXPECT_THAT(
      run_all({lost}, nothing, Milliseconds(200)),
      ElementsAre(StartsWith("[cluster] rank 0 is not reachable at no-such-host.invalid:")));
  lost.master_address.clear();
  EXPECT_ERROR(
      join(lost), ErrorKind::usage,
      "[cluster] the ranks have no address of rank 0; got rank 1 of 2 (local 1 of 2 on node 0 "
      "of 1), found by torchrun variables, expected MASTER_ADDR and MASTER_PORT (set both, "
      "the same on all ranks, to the machine of rank 0 and a free port)");
}

// Accepts one connection and answers it with these bytes.
std::string against_foreign_server(const std::string& answer, Milliseconds patience) {
  const Listening here = listen_for("127.0.0.1", 0);
  std::thread server([&] {
    EXPECT_TRUE(net::wait_for(here.socket.get(), POLLIN, Deadline::after(kLong)));
    const net::Descriptor peer(::accept(here.socket.get(), nullptr, nullptr));
    std::string seen, reason;
    std::string_view unsent = answer;  // a new socket has room for it
    EXPECT_TRUE(net::send_some(peer.get(), unsent, reason));
    while (net::wait_for(peer.get(), POLLIN, Deadline::after(kLong)) &&
           net::receive(peer.get(), seen, reason)) {
    }
  });
  const auto errors = run_all({member(1, 2, here.port)}, nothing, patience);
  server.join();
  std::string error = errors[0];
  const std::string where = place(here.port);
  if (const size_t at = error.find(where); at != std::string::npos) {
    error.replace(at, where.size(), "PLACE");
  }
  return error;
}

TEST(Rendezvous, ForeignProgramOnThePort) {
  EXPECT_EQ(
      against_foreign_server("HTTP/1.0 400 Bad Request\r\n\r\n", kLong),
      "[cluster] another program answers at PLACE; got \"HTTP/1.0 400 Bad Request\", expected "
      "the answer of Troika's rank 0 (set MASTER_PORT to a free port, the same on all "
      "ranks)");
  EXPECT_EQ(against_foreign_server("", Milliseconds(200)),
            "[cluster] no answer from rank 0 at PLACE within 0.2 s; got a connection that stays "
            "silent, expected Troika's rank 0 (another program may have the port, or rank 0 is "
            "stopped)");
}

TEST(Rendezvous, ASilentServerEndsTheWaitAndANameThatDoesNotResolveYetDoesNot) {
  std::string silent;
  const auto start = Clock::now();
  std::thread server([&] { silent = against_foreign_server("", kLong); });
  auto early = member(1, 2, free_port());
  early.master_address = "no-such-host.invalid";
  const auto errors = run_all({early}, nothing, Milliseconds(9000));
  server.join();
  EXPECT_LT(Clock::now() - start, kLong);
  EXPECT_THAT(silent, StartsWith("[cluster] no answer from rank 0 at PLACE within 5 s; got a "
                                 "connection that stays silent"));
  EXPECT_THAT(errors,
              ElementsAre(StartsWith("[cluster] rank 0 is not reachable at no-such-host.invalid:" +
                                     std::to_string(early.master_port) + " within 9 s; got ")));
}

TEST(Rendezvous, LatecomersOfTheSameUserAreToldWhy) {
  const int port = free_port();
  const RunSecret secret{net::Secret::random(), "a test"};
  const auto errors = run_all(world(4, port), secret, [&](Rendezvous& meeting, int rank) {
    if (rank == 0) {
      const auto late = run_all({member(1, 4, port)}, secret, nothing);
      EXPECT_EQ(late[0], "[cluster] the run at " + place(port) +
                             " has all its ranks; got another rank 1 from " + this_process() +
                             ", expected no more ranks (set another MASTER_PORT, or end the other "
                             "run)");
      auto foreign = member(1, 4, port);
      foreign.run_id = "second";
      EXPECT_EQ(run_all({foreign}, secret, nothing)[0],
                "[cluster] another run has " + place(port) +
                    "; got run \"second\", expected run \"\" (set another MASTER_PORT, or end the "
                    "other run)");
    }
    all_meet(meeting, "still here", 4);
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Rendezvous, GetEndsAtItsDeadlineNamingTheKey) {
  const auto meeting = join(Environment{});
  EXPECT_ERROR(meeting->get("never", Deadline::after(Milliseconds(50))), ErrorKind::timeout,
               "[cluster] the time is over while waiting for key \"never\"");
  meeting->set("text", "word");
  EXPECT_ERROR(meeting->add("text", 1), ErrorKind::usage,
               "[cluster] cannot add to key \"text\"; got a value that is no integer, expected a "
               "64-bit integer");
  meeting->set("big", "9223372036854775807");
  EXPECT_ERROR(meeting->add("big", 1), ErrorKind::usage,
               "[cluster] cannot add to key \"big\"; got a sum beyond 64 bits, expected a 64-bit "
               "integer");
  EXPECT_EQ(meeting->get("text", Deadline::after(kLong)), "word") << "the connection lives on";
}

TEST(Rendezvous, RankZeroSaysAtOnceThatItHasTooFewDescriptors) {
  const pid_t child = in_child([] {
    const rlimit few{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &few);
    EXPECT_ERROR(join(member(0, 60, free_port())), ErrorKind::usage,
                 "[cluster] rank 0 cannot hold the connections of 60 ranks; got a limit of 64 open "
                 "files, expected at least 92 (raise the hard limit (ulimit -Hn) where rank 0 "
                 "starts)");
    if (testing::Test::HasFailure()) ::_exit(1);
  });
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Rendezvous, RankZeroRaisesItsOwnLimitOfDescriptors) {
  const pid_t child = in_child([] {
    static constexpr rlimit few{64, 512};
    ::setrlimit(RLIMIT_NOFILE, &few);
    // Ranks are threads here and share the limit, so the others come once rank 0 has raised it.
    const auto join_in_turn = [](const Environment& own) {
      const auto deadline = Deadline::after(kLong);
      rlimit now = few;
      while (own.rank > 0 && now.rlim_cur == few.rlim_cur && !deadline.passed()) {
        std::this_thread::yield();
        ::getrlimit(RLIMIT_NOFILE, &now);
      }
      return join(own);
    };
    EXPECT_THAT(run_all(world(60, free_port()), join_in_turn,
                        [](Rendezvous& meeting, int) { meeting.leave(); }),
                Each(""));
    if (testing::Test::HasFailure()) ::_exit(1);
  });
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Rendezvous, ManyRanks) {
  constexpr int kSize = 64;
  const auto errors = run_all(world(kSize, free_port()), [&](Rendezvous& meeting, int) {
    if (meeting.add("here", 1) == kSize) meeting.set("all", "");
    meeting.get("all", Deadline::after(kLong));
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace troika::cluster
