// The notices that ranks get when another rank is killed, throws or leaves.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "tests/cluster/rendezvous_world.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/wire.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cluster {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class RendezvousLoss : public WithAndWithoutRelays {};
INSTANTIATE_TEST_SUITE_P(Worlds, RendezvousLoss, testing::Bool(), show_relays);

TEST_P(RendezvousLoss, KilledPeerIsReportedAndEndsWaits) {
  const int port = free_port();
  const pid_t victim = in_child([&] {
    const auto meeting = join(member(1, 3, port));
    meeting->set("joined", "");
    meeting->get("never", Deadline::after(kLong));
  });
  const auto errors = run_all({member(0, 3, port), member(2, 3, port)}, [&](Rendezvous& meeting,
                                                                            int rank) {
    const News losses = losses_of(meeting);
    meeting.get("joined", Deadline::after(kLong));
    // The victim may relay for rank 2, which repeats a set(), but not an add().
    if (rank == 2) meeting.set("ready", "");
    if (rank == 0) {
      meeting.get("ready", Deadline::after(kLong));
      ::kill(victim, SIGKILL);
    }
    const std::string who = "(process " + std::to_string(victim) + " on " + net::host_name() + ")";
    try {
      meeting.get("missing", Deadline::after(kLong));
      ADD_FAILURE() << "must not wait for a lost rank";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::peer);
      EXPECT_THAT(error.what(),
                  AllOf(StartsWith("[cluster] rank 1 was lost while waiting for key \"missing\"; "
                                   "got "),
                        HasSubstr(who)));
    }
    const auto [lost, reason] = losses.first();
    EXPECT_EQ(lost, 1);
    EXPECT_THAT(reason, HasSubstr(who));
    EXPECT_EQ(losses_of(meeting).first().first, 1) << "late listeners are told too";
    EXPECT_EQ(meeting.get("joined", Deadline::after(kLong)), "") << "what is there stays readable";
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
  ::waitpid(victim, nullptr, 0);
}

TEST_P(RendezvousLoss, KilledRankZeroIsReported) {
  const int port = free_port();
  const pid_t victim = in_child([&] {
    const auto meeting = join(member(0, 3, port));
    meeting->get("never", Deadline::after(kLong));
  });
  const auto errors = run_all({member(1, 3, port), member(2, 3, port)}, [&](Rendezvous& meeting,
                                                                            int) {
    const News losses = losses_of(meeting);
    if (meeting.add("ready", 1) == 2) ::kill(victim, SIGKILL);
    try {
      meeting.get("missing", Deadline::after(kLong));
      ADD_FAILURE() << "must not wait for a lost rank 0";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::peer);
      EXPECT_THAT(error.what(), StartsWith("[cluster] rank 0, which holds the keys, was lost while "
                                           "waiting for key \"missing\"; got "));
    }
    EXPECT_EQ(losses.first().first, 0);
    meeting.leave();
  });
  // The answer to the last add may be lost with the server.
  EXPECT_THAT(errors,
              Each(testing::AnyOf("", HasSubstr("was lost while adding to key \"ready\""))));
  ::waitpid(victim, nullptr, 0);
}

TEST_P(RendezvousLoss, PeerThatDiesBeforeAllArrivedEndsTheGathering) {
  const int port = free_port();
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t victim = in_child([&] {
    // Sends a hello by hand and then hangs, so that it is killed during the gathering.
    const auto key = role_key(secret_of_ranks(member(1, 3, port)), Role::ranks);
    const std::string server = listener_name(Role::ranks, port);
    net::TcpEndpoint endpoint({.name = "victim", .secret = key, .listen = {}});
    endpoint.connect(server, {{"127.0.0.1", port}}, Deadline::after(kLong));
    const Hello hello{.rank = 1,
                      .world_size = 3,
                      .host = "here",
                      .pid = 7,
                      .patience_ms = 20'000,
                      .left_ms = 20'000};
    net::send_by(endpoint, server, kToServer, encode({Message::hello, 0, "", to_json(hello)}),
                 Deadline::after(kLong));
    [[maybe_unused]] const auto told = ::write(fds[1], "x", 1);
    ::pause();
  });
  std::thread killer([&] {
    char byte;
    EXPECT_EQ(::read(fds[0], &byte, 1), 1);
    ::kill(victim, SIGKILL);
  });
  const auto errors = run_all({member(0, 3, port)}, nothing);
  killer.join();
  ::waitpid(victim, nullptr, 0);
  ::close(fds[0]);
  ::close(fds[1]);
  EXPECT_THAT(
      errors,
      ElementsAre(AllOf(StartsWith("[cluster] rank 1 was lost before all ranks had arrived; got "),
                        HasSubstr("(process 7 on here), expected 3 ranks"))));
}

TEST_P(RendezvousLoss, LeavingIsNoLossAndThrowingIs) {
  const int port = free_port();
  const auto errors = run_all(world(3, port), [&](Rendezvous& meeting, int rank) {
    if (rank == 1) return meeting.leave();
    if (rank == 2) throw Error("test", ErrorKind::failure, {.what = "out of luck"});
    EXPECT_EQ(losses_of(meeting).first().first, 2);
    meeting.leave();
  });
  EXPECT_THAT(errors, ElementsAre("", "", "[test] out of luck"));
}

TEST_P(RendezvousLoss, RankZeroLeavingEndsWaitsButIsNoLoss) {
  const int port = free_port();
  std::atomic<bool> lost = false;
  const auto errors = run_all(world(2, port), [&](Rendezvous& meeting, int rank) {
    if (rank == 0) {
      meeting.get("listening", Deadline::after(kLong));
      return meeting.leave("", Deadline::after(Milliseconds(50)));
    }
    meeting.on_peer_lost([&](int, const std::string&) { lost = true; });
    meeting.set("listening", "");
    meeting.get("never", Deadline::after(kLong));
  });
  EXPECT_THAT(errors, ElementsAre("",
                                  "[cluster] rank 0, which holds the keys, left while waiting "
                                  "for key \"never\"; got it has ended"));
  EXPECT_FALSE(lost);
}

}  // namespace
}  // namespace troika::cluster
