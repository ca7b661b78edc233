#include "troika/server/membership.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/server/resend_queue.h"

namespace troika::server {
namespace {

using std::chrono::milliseconds;

SchedulerOptions membership_options() {
  return {.tables = {{.name = "w", .keys = 10}}, .ranges = 4, .limit = milliseconds(400)};
}

Beat server_beat(uint64_t number) {
  return {.role = Role::server, .instance = 7, .number = number};
}

// If the scheduler itself was stopped, the beats of that time wait in its sockets.
TEST(ServerMembership, NoNodeIsLostForThePauseOfTheScheduler) {
  Membership membership(membership_options());
  membership.expire(milliseconds(0));
  membership.take("s0", server_beat(1), milliseconds(10));
  net::Duration now = milliseconds(50);
  EXPECT_FALSE(membership.expire(now));
  now += std::chrono::seconds(100);
  EXPECT_FALSE(membership.expire(now)) << "the scheduler was stopped";
  EXPECT_EQ(membership.counts().servers, 1);
  bool is_lost = false;
  for (int i = 0; i < 9 && !is_lost; ++i) is_lost = membership.expire(now += milliseconds(50));
  EXPECT_TRUE(is_lost) << "it has sent nothing since";
}

TEST(ServerMembership, NodesOfAnotherSchedulerAreNotTakenOverUnasked) {
  Membership membership(membership_options());
  auto beat = server_beat(1);
  beat.generation = 8;
  EXPECT_ERROR(
      membership.take("s0", beat, milliseconds(1)), ErrorKind::usage,
      "[server] s0 has a newer map than the scheduler; got generation 8, expected at most 0 "
      "(if the scheduler was lost, begin it again with SchedulerOptions::takes_over)");
}

// The name and the addresses are part of maps and directories, which are lines of words.
TEST(ServerMembership, NodesWithNamesThatBreakTheMapAreRefused) {
  Membership membership(membership_options());
  for (const char* name : {"", "s 0", "s0\nworker", "s0\t", "s0@3", "+s0", "s0\r"}) {
    EXPECT_THROW(membership.take(name, server_beat(1), milliseconds(1)), Error) << name;
  }
  auto beat = server_beat(1);
  beat.addresses = "127.0.0.1:1\ns9 127.0.0.1:2";
  EXPECT_ERROR(membership.take("s0", beat, milliseconds(1)), ErrorKind::usage,
               "[server] the addresses of node s0; got several lines, expected one line");
  EXPECT_EQ(membership.counts().servers, 0);
}

Beat worker_beat(uint64_t number) {
  return {.role = Role::worker, .instance = 9, .number = number, .wanted = 0};
}

TEST(ServerMembership, ARunWithoutAllItsWorkersEnds) {
  auto options = membership_options();
  options.first_workers = 3;
  options.join_timeout = milliseconds(1000);
  Membership membership(options);
  EXPECT_EQ(membership.missing(), "");
  net::Duration now = milliseconds(0);
  bool has_ended = false;
  for (uint64_t i = 1; now < milliseconds(1000); ++i, now += milliseconds(50)) {
    membership.take("w0", worker_beat(i), now);
    if (i > 2) membership.take("w1", worker_beat(i), now);
    has_ended = has_ended || membership.expire(now);
  }
  EXPECT_FALSE(has_ended);
  EXPECT_EQ(membership.missing(), "2 of 3 workers and 0 of 1 servers have joined");
  EXPECT_THAT(membership.status(now),
              testing::HasSubstr("waits: 2 of 3 workers and 0 of 1 servers have joined\n"));
  EXPECT_FALSE(membership.have_workers_ended());
  EXPECT_TRUE(membership.expire(now += milliseconds(50)));
  membership.take("w2", worker_beat(1), now);
  for (const auto* name : {"w0", "w1", "w2"}) {
    EXPECT_EQ(membership.state_for(name).refusal,
              "only 2 of 3 workers and 0 of 1 servers have joined within 1 s of the first worker");
  }
  EXPECT_TRUE(membership.have_workers_ended());
}

// A launch knows at once that a process has ended; the beats of others tell it after the limit.
TEST(ServerMembership, ARunThatLosesNodesBeforeItBeginsEnds) {
  auto options = membership_options();
  options.first_workers = 2;
  options.first_servers = 2;
  const auto begin = [&] {
    Membership membership(options);
    membership.expire(milliseconds(0));
    membership.take("server-0", server_beat(1), milliseconds(1));
    membership.take("worker-0", worker_beat(1), milliseconds(1));
    return membership;
  };
  for (const std::string name : {"server-0", "server-1", "worker-1"}) {
    auto membership = begin();
    EXPECT_TRUE(membership.note_end(name, "killed by SIGKILL (137)"));
    EXPECT_FALSE(membership.note_end(name, "killed by SIGKILL (137)")) << "no news";
    for (const auto* node : {"server-0", "worker-0"}) {
      EXPECT_EQ(membership.state_for(node).refusal, name + " is lost: killed by SIGKILL (137)");
    }
    EXPECT_TRUE(membership.have_workers_ended());
    EXPECT_FALSE(membership.have_all_heard()) << "one is late";
    const std::string late = name == "worker-1" ? "server-1" : "worker-1";
    membership.take(late, late == "server-1" ? server_beat(1) : worker_beat(1), milliseconds(2));
    EXPECT_EQ(membership.state_for(late).refusal, name + " is lost: killed by SIGKILL (137)");
    EXPECT_EQ(membership.have_all_heard(), name != "server-0") << "server-1 is to come, too";
  }
  auto membership = begin();
  EXPECT_FALSE(membership.note_end("worker-0", "exit code 1")) << "it has joined";
  uint64_t number = 1;
  for (net::Duration now = milliseconds(50); now < milliseconds(1000); now += milliseconds(50)) {
    membership.take("worker-0", worker_beat(++number), now);
    membership.expire(now);
  }
  EXPECT_EQ(membership.failure(),
            "server-0 is lost: the scheduler had not heard of server-0 for 0.4 s");
}

TEST(ServerMembership, ARunThatHasBegunGoesOnWithoutLostNodes) {
  auto options = membership_options();
  options.first_servers = 2;
  Membership membership(options);
  membership.take("server-0", server_beat(1), milliseconds(1));
  membership.take("server-1", server_beat(1), milliseconds(1));
  membership.take("worker-0", worker_beat(1), milliseconds(1));
  EXPECT_FALSE(membership.note_end("server-1", "killed by SIGKILL (137)"));
  EXPECT_FALSE(membership.note_end("worker-0", "killed by SIGKILL (137)"));
  EXPECT_EQ(membership.failure(), "");
}

// No other server has what a summation server sums.
TEST(ServerMembership, ARunWithoutTablesEndsWithAServer) {
  auto options = membership_options();
  options.tables.clear();
  options.takes_tables = true;
  options.first_servers = 2;
  Membership membership(options);
  membership.take("server-0", server_beat(1), milliseconds(1));
  membership.take("server-1", server_beat(1), milliseconds(1));
  membership.take("worker-0", worker_beat(1), milliseconds(1));
  EXPECT_TRUE(membership.note_end("server-1", "killed by SIGKILL (137)"));
  EXPECT_EQ(membership.state_for("worker-0").refusal, "server-1 is lost: killed by SIGKILL (137)");
}

// Workers leave after their last sum, and processes with a server of their own end then.
TEST(ServerMembership, ARunWithoutTablesNeedsNoServersAtItsEnd) {
  auto options = membership_options();
  options.tables.clear();
  options.takes_tables = true;
  options.first_workers = 2;
  Membership membership(options);
  for (const auto* name : {"worker-0", "worker-1"}) {
    membership.take(name, worker_beat(1), milliseconds(1));
  }
  membership.take("server-1", server_beat(1), milliseconds(1));
  auto leaving = worker_beat(2);
  leaving.is_leaving = true;
  membership.take("worker-1", leaving, milliseconds(2));
  EXPECT_FALSE(membership.note_end("server-1", "exit code 0"));
  EXPECT_EQ(membership.failure(), "");
}

// They will not come again.
TEST(ServerMembership, WorkersThatEndedBeforeTheLastOneJoinedCount) {
  auto options = membership_options();
  options.first_workers = 3;
  Membership membership(options);
  auto leaving = worker_beat(2);
  leaving.is_leaving = true;
  membership.take("w0", worker_beat(1), milliseconds(1));
  membership.take("w0", leaving, milliseconds(2));
  membership.take("w1", worker_beat(1), milliseconds(3));
  EXPECT_EQ(membership.state_for("w1").granted, -1);
  for (int i = 1; i < 12; ++i) membership.expire(milliseconds(50 * i));
  EXPECT_EQ(membership.counts().workers, 0) << "w1 is lost";
  membership.take("w2", worker_beat(1), milliseconds(600));
  EXPECT_EQ(membership.state_for("w2").granted, 0);
}

TEST(ServerMembership, ASchedulerTakesOverFromOneThatHadNotBegun) {
  auto options = membership_options();
  options.takes_over = true;
  Membership membership(options);
  auto worker = worker_beat(0);
  auto server = server_beat(0);
  worker.map = server.map = to_text(RingMap{});
  net::Duration now = milliseconds(0);
  for (; membership.is_taking_over() && now < std::chrono::seconds(20); now += milliseconds(50)) {
    ++worker.number, ++server.number;
    membership.take("w0", worker, now);
    membership.take("s0", server, now);
    membership.expire(now);
  }
  EXPECT_FALSE(membership.is_taking_over());
  EXPECT_EQ(membership.map().master(0), "s0");
  EXPECT_EQ(membership.state_for("w0").granted, 0);
}

// The beats before may be lost.
TEST(ServerMembership, TheLastStepOfAWorkerThatLeavesIsCommitted) {
  Membership membership(membership_options());
  Beat beat{.role = Role::worker, .instance = 7, .number = 1, .wanted = 0};
  membership.take("w0", beat, milliseconds(1));
  EXPECT_EQ(membership.state_for("w0").granted, 0);
  beat = {.role = Role::worker,
          .instance = 7,
          .number = 2,
          .is_leaving = true,
          .wanted = 0,
          .finished = 0};
  membership.take("w0", beat, milliseconds(2));
  EXPECT_TRUE(membership.state_for("w0").may_leave);
  EXPECT_EQ(membership.state_for("w0").committed, 0);
}

TEST(ServerResendQueue, WaitsWhileTheEndpointIsSending) {
  ResendQueue<int> queue(milliseconds(10), 4);
  queue.add(1, 5);
  std::vector<net::Completion> sending;
  const auto send = [&](uint64_t, int, net::Completion done) {
    sending.push_back(std::move(done));
  };
  queue.send(milliseconds(0), send);
  ASSERT_EQ(sending.size(), 1u);
  queue.resend(milliseconds(1000), send);
  EXPECT_EQ(sending.size(), 1u) << "a large item takes long";
  sending[0]({});
  queue.resend(milliseconds(1005), send);
  EXPECT_EQ(sending.size(), 1u);
  queue.resend(milliseconds(1011), send);
  EXPECT_EQ(sending.size(), 2u);
}

// Sends to a stopped process may never end.
TEST(ServerResendQueue, SendsThatAreStuckDoNotDelayThoseToAnotherServer) {
  ResendQueue<int> queue(milliseconds(10), 4);
  queue.add(1, 5);
  std::vector<net::Completion> sending;
  const auto send = [&](uint64_t, int, net::Completion done) {
    sending.push_back(std::move(done));
  };
  queue.send(milliseconds(0), send);
  queue.restart();
  queue.send(milliseconds(1), send);
  ASSERT_EQ(sending.size(), 2u);
  sending[1]({});
  queue.resend(milliseconds(12), send);
  EXPECT_EQ(sending.size(), 3u);
  sending[0]({});
  queue.resend(milliseconds(100), send);
  EXPECT_EQ(sending.size(), 3u) << "the last one is under way";
}

}  // namespace
}  // namespace troika::server
