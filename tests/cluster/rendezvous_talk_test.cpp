// Messages between ranks other than keys: farewells, questions and answers.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <optional>

#include "tests/cluster/rendezvous_world.h"
#include "troika/cluster/discovery/port.h"

namespace troika::cluster {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using Texts = std::vector<std::optional<std::string>>;

const std::string kBytes("a\0b\xff\n", 5);

std::optional<std::string> none() {
  return std::nullopt;
}

std::optional<std::string> some(const std::string& text) {
  return text;
}

Texts texts(Rendezvous& meeting, const std::string& question, Deadline deadline) {
  return meeting.ask_all(question, deadline).text;
}

// Stops a child process. Returns when it has stopped.
void stop(pid_t child) {
  ::kill(child, SIGSTOP);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
}

void reap(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// Starts a rank that only answers "child" until it is killed. It is not a relay.
pid_t answering_child(int rank, int world_size, int port) {
  return in_child([=] {
    auto alone = member(rank, world_size, port);
    alone.local_world_size = 1;
    const auto meeting = join(alone);
    meeting->on_asked([](const std::string&) { return "child"; });
    all_meet(*meeting, "ready", world_size);
    ::pause();
  });
}

class RendezvousFarewell : public WithAndWithoutRelays {};
INSTANTIATE_TEST_SUITE_P(Worlds, RendezvousFarewell, testing::Bool(), show_relays);

TEST_P(RendezvousFarewell, ReachesAllAtOnceAndLateListeners) {
  const auto errors = run_all(world(3, free_port()), [&](Rendezvous& meeting, int rank) {
    const News losses = losses_of(meeting);
    if (rank == 2) return meeting.leave(kBytes);
    const News early = departures_of(meeting);
    EXPECT_THAT(early.first(), Pair(2, kBytes));
    EXPECT_THAT(departures_of(meeting).first(), Pair(2, kBytes));
    if (rank == 0) {
      // Rank 1 is notified while rank 0 waits for rank 1.
      meeting.leave("from rank 0");
    } else {
      EXPECT_THAT(early.first(2), ElementsAre(Pair(2, kBytes), Pair(0, "from rank 0")));
      meeting.leave();
    }
    EXPECT_TRUE(losses.empty());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(RendezvousFarewell, ListenersHearOfLossesAndDeparturesInOrder) {
  std::promise<void> release;
  const auto errors = run_all(world(5, free_port()), [&](Rendezvous& meeting, int rank) {
    const News both;
    meeting.on_peer_lost(both.listener());
    if (rank == 0) {
      // Blocks the thread until all later notices have arrived, so that it gets them together.
      meeting.on_peer_left([released = release.get_future().share()](int, const std::string&) {
        EXPECT_EQ(released.wait_for(kLong), std::future_status::ready);
      });
    }
    meeting.on_peer_left(both.listener());
    all_meet(meeting, "listening", 5);
    if (rank == 3) return meeting.leave("first");
    if (rank == 2) {
      EXPECT_THAT(both.first(), Pair(3, "first"));
      return meeting.leave("second");
    }
    if (rank == 1) {
      EXPECT_THAT(both.first(2), ElementsAre(testing::_, Pair(2, "second")));
      throw Error("test", ErrorKind::failure, {.what = "out of luck"});
    }
    if (rank == 4) {
      both.first(3);
      release.set_value();
    }
    EXPECT_THAT(both.first(3),
                ElementsAre(Pair(3, "first"), Pair(2, "second"), Pair(1, HasSubstr("closed"))));
    meeting.leave();
  });
  EXPECT_THAT(errors, ElementsAre("", "[test] out of luck", "", "", ""));
}

TEST_P(RendezvousFarewell, ListenersMayNotWaitForTheirOwnThread) {
  std::promise<void> told;
  const auto errors = run_all(world(2, free_port()), [&](Rendezvous& meeting, int rank) {
    if (rank == 1) return meeting.leave();
    meeting.on_peer_left([&](int, const std::string&) {
      EXPECT_THROW(meeting.set("key", ""), CheckError);
      EXPECT_THROW(meeting.ask_all("", Deadline::after(kLong)), CheckError);
      told.set_value();
    });
    EXPECT_EQ(told.get_future().wait_for(kLong), std::future_status::ready);
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

class RendezvousAsk : public WithAndWithoutRelays {};
INSTANTIATE_TEST_SUITE_P(Worlds, RendezvousAsk, testing::Bool(), show_relays);

TEST_P(RendezvousAsk, AllAnswerWhateverTheirThreadsDo) {
  std::promise<void> release;
  const auto released = release.get_future().share();
  const auto errors = run_all(world(4, free_port()), [&](Rendezvous& meeting, int rank) {
    if (rank != 2) {
      meeting.on_asked(
          [rank](const std::string& question) { return question + std::to_string(rank); });
    }
    all_meet(meeting, "ready", 4);
    if (rank == 1) {
      EXPECT_THAT(
          texts(meeting, kBytes, Deadline::after(kLong)),
          ElementsAre(some(kBytes + "0"), some(kBytes + "1"), some(""), some(kBytes + "3")));
      release.set_value();
    } else {
      EXPECT_EQ(released.wait_for(kLong), std::future_status::ready);
    }
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(RendezvousAsk, Alone) {
  const auto meeting = join(Environment{});
  EXPECT_THAT(texts(*meeting, "?", Deadline::after(kLong)), ElementsAre(some("")));
  meeting->on_asked([](const std::string& question) { return question + "!"; });
  EXPECT_THAT(texts(*meeting, "?", Deadline::after(kLong)), ElementsAre(some("?!")));
}

TEST_P(RendezvousAsk, AllMayAskAtOnceFromSeveralThreads) {
  constexpr int kSize = 3;
  const std::string large(1 << 20, 'x');
  const auto errors = run_all(world(kSize, free_port()), [&](Rendezvous& meeting, int rank) {
    meeting.on_asked([&, rank](const std::string& question) {
      return question == "large" ? large : question + " to " + std::to_string(rank);
    });
    all_meet(meeting, "ready", kSize);
    const auto ask_often = [&](int thread) {
      for (int i = 0; i < 30; ++i) {
        const std::string question =
            std::to_string(rank) + "." + std::to_string(thread) + "." + std::to_string(i);
        EXPECT_THAT(texts(meeting, question, Deadline::after(kLong)),
                    ElementsAre(some(question + " to 0"), some(question + " to 1"),
                                some(question + " to 2")));
      }
      EXPECT_TRUE(texts(meeting, "large", Deadline::after(kLong)) == Texts(kSize, some(large)));
    };
    std::thread second([&] { ask_often(1); });
    ask_often(0);
    second.join();
    all_meet(meeting, "done", kSize);
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(RendezvousAsk, AllOfManyMayAskTheSameAtOnce) {
  constexpr int kSize = 64;
  const auto errors = run_all(world(kSize, free_port()), [&](Rendezvous& meeting, int rank) {
    meeting.on_asked([rank](const std::string&) { return std::to_string(rank / 2); });
    all_meet(meeting, "ready", kSize);
    const auto answers = texts(meeting, "?", Deadline::after(kLong));
    for (int peer = 0; peer < kSize; ++peer) {
      EXPECT_EQ(answers[static_cast<size_t>(peer)], some(std::to_string(peer / 2)));
    }
    all_meet(meeting, "done", kSize);
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(RendezvousAsk, StoppedProcessHasNoAnswerAndALostOneNoneAtOnce) {
  const int port = free_port();
  const pid_t child = answering_child(1, 3, port);
  std::promise<void> asked_long, done;
  const auto errors =
      run_all({member(0, 3, port), member(2, 3, port)}, [&](Rendezvous& meeting, int rank) {
        meeting.on_asked([&, rank](const std::string& question) {
          if (question == "long" && rank == 0) asked_long.set_value();
          return std::to_string(rank);
        });
        all_meet(meeting, "ready", 3);
        if (rank == 0) {
          EXPECT_EQ(asked_long.get_future().wait_for(kLong), std::future_status::ready);
          reap(child);
          EXPECT_EQ(done.get_future().wait_for(kLong), std::future_status::ready);
          return meeting.leave();
        }
        EXPECT_THAT(texts(meeting, "", Deadline::after(kLong)),
                    ElementsAre(some("0"), some("child"), some("2")));
        stop(child);
        EXPECT_THAT(texts(meeting, "", Deadline::after(Milliseconds(300))),
                    ElementsAre(some("0"), none(), some("2")));
        const auto start = Clock::now();
        // The rank is lost during the question, and then before it.
        EXPECT_THAT(texts(meeting, "long", Deadline::after(kLong)),
                    ElementsAre(some("0"), none(), some("2")));
        EXPECT_EQ(losses_of(meeting).first().first, 1);
        EXPECT_THAT(texts(meeting, "", Deadline::after(kLong)),
                    ElementsAre(some("0"), none(), some("2")));
        EXPECT_LT(Clock::now() - start, kLong / 2);
        done.set_value();
        meeting.leave();
      });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(RendezvousAsk, RankThatLeftHasNoAnswerAtOnce) {
  const auto errors = run_all(world(3, free_port()), [&](Rendezvous& meeting, int rank) {
    meeting.on_asked([](const std::string&) { return "here"; });
    all_meet(meeting, "ready", 3);
    if (rank == 2) {
      // The rank leaves during the question.
      meeting.get("asked", Deadline::after(kLong));
      return meeting.leave();
    }
    if (rank == 0) return meeting.leave();
    EXPECT_EQ(departures_of(meeting).first().first, 0);
    meeting.set("asked", "");
    const auto start = Clock::now();
    EXPECT_THAT(texts(meeting, "", Deadline::after(kLong)),
                ElementsAre(none(), some("here"), testing::_));
    EXPECT_THAT(departures_of(meeting).first(2), ElementsAre(Pair(0, ""), Pair(2, "")));
    EXPECT_THAT(texts(meeting, "", Deadline::after(kLong)),
                ElementsAre(none(), some("here"), none()));
    EXPECT_LT(Clock::now() - start, kLong / 2);
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(RendezvousAsk, ServerThatStopsReadingBlocksNoThread) {
  const int port = free_port();
  const pid_t child = in_child([&] {
    const auto meeting = join(member(0, 3, port));
    meeting->get("go", Deadline::after(kLong));
    meeting->ask_all("large", Deadline::after(kLong));
    ::pause();
  });
  const auto start = Clock::now();
  std::promise<void> stopped;
  const auto errors =
      run_all({member(1, 3, port), member(2, 3, port)}, [&](Rendezvous& meeting, int rank) {
        if (rank == 2) return meeting.leave("done");
        EXPECT_THAT(departures_of(meeting).first(), Pair(2, "done"));
        meeting.on_asked([&](const std::string& question) -> std::string {
          if (question != "large") return "still here";
          stop(child);
          stopped.set_value();
          // More than sockets take while the other side does not read.
          return std::string(16 << 20, 'x');
        });
        meeting.set("go", "");
        EXPECT_EQ(stopped.get_future().wait_for(kLong), std::future_status::ready);
        EXPECT_THAT(departures_of(meeting).first(), Pair(2, "done"))
            << "told by the thread that owes the answer";
        EXPECT_THAT(texts(meeting, "", Deadline::after(Milliseconds(100))),
                    ElementsAre(none(), some("still here"), none()));
        const News losses = losses_of(meeting);
        reap(child);
        EXPECT_EQ(losses.first().first, 0);
        EXPECT_THAT(texts(meeting, "", Deadline::after(kLong)),
                    ElementsAre(none(), some("still here"), none()));
        meeting.leave();
      });
  EXPECT_THAT(errors, Each(""));
  EXPECT_LT(Clock::now() - start, kLong / 2);
}

TEST_P(RendezvousAsk, DestructionDoesNotWaitForAServerThatStopsReading) {
  const int port = free_port();
  const pid_t child = answering_child(0, 2, port);
  const auto start = Clock::now();
  const auto errors = run_all({member(1, 2, port)}, [&](Rendezvous& meeting, int) {
    all_meet(meeting, "ready", 2);
    stop(child);
    EXPECT_THAT(texts(meeting, std::string(16 << 20, 'x'), Deadline::after(Milliseconds(100))),
                ElementsAre(none(), some("")));
    meeting.leave("", Deadline::after(Milliseconds(100)));
  });
  reap(child);
  EXPECT_THAT(errors, Each(""));
  EXPECT_LT(Clock::now() - start, kLong / 2);
}

}  // namespace
}  // namespace troika::cluster
