// Peers that connect, leave, stop, and find each other.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "tests/net/endpoints.h"
#include "tests/support/errors.h"
#include "troika/net/socket.h"

namespace troika::net {
namespace {

using testing::HasSubstr;

// Ranks that are processes, with endpoints "0", "1", ..., connected each to each.
class World {
 public:
  using Rank = std::function<bool(TcpEndpoint&, int rank)>;

  // Calls `run` in each process; it returns whether everything was right.
  World(int size, const Secret& secret, const Rank& run) {
    std::vector<Pipe> to(static_cast<size_t>(size));
    for (auto& pipe : to) pipe = make_pipe();
    const Pipe from = make_pipe();
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::_exit(
            be(rank, size, secret, from.write.get(), to[static_cast<size_t>(rank)].read.get(), run)
                ? 0
                : 1);
      }
      pids_.push_back(pid);
    }
    std::vector<int> ports(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) {
      int entry[2] = {0, 0};
      EXPECT_EQ(::read(from.read.get(), entry, sizeof(entry)), ssize_t{sizeof(entry)});
      ports[static_cast<size_t>(entry[0])] = entry[1];
    }
    const auto bytes = static_cast<ssize_t>(ports.size() * sizeof(int));
    for (const auto& pipe : to) {
      EXPECT_EQ(::write(pipe.write.get(), ports.data(), static_cast<size_t>(bytes)), bytes);
    }
  }
  // The wait status of a rank.
  int wait(int rank) {
    int status = -1;
    ::waitpid(pids_[static_cast<size_t>(rank)], &status, 0);
    return status;
  }
  void kill(int rank) { ::kill(pids_[static_cast<size_t>(rank)], SIGKILL); }

 private:
  static bool be(int rank, int size, const Secret& secret, int out, int in, const Rank& run) {
    try {
      TcpEndpoint endpoint(options_for(std::to_string(rank), secret));
      const int entry[2] = {rank, endpoint.addresses()[0].port};
      std::vector<int> ports(static_cast<size_t>(size));
      const size_t bytes = ports.size() * sizeof(int);
      if (::write(out, entry, sizeof(entry)) != ssize_t{sizeof(entry)}) return false;
      if (::read(in, ports.data(), bytes) != static_cast<ssize_t>(bytes)) return false;
      // Both ends of each pair connect at once.
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        endpoint.connect(std::to_string(peer), {{"127.0.0.1", ports[static_cast<size_t>(peer)]}},
                         soon());
      }
      return run(endpoint, rank);
    } catch (const std::exception& error) {
      ADD_FAILURE() << rank << ": " << error.what();
      return false;
    }
  }

  std::vector<pid_t> pids_;
};

// Every rank has heard from every other one.
void barrier(TcpEndpoint& endpoint, int rank, int size) {
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) send_by(endpoint, std::to_string(peer), 1, "here", soon());
  }
  char text[4];
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) receive_by(endpoint, std::to_string(peer), 1, text, soon());
  }
}

class Victims : public testing::TestWithParam<int> {};

TEST_P(Victims, AKilledProcessIsToldToAllWhoWait) {
  constexpr int kSize = 5;
  const int victim = GetParam();
  World world(kSize, Secret::random(), [&](TcpEndpoint& endpoint, int rank) {
    Watch watch(endpoint);
    barrier(endpoint, rank, kSize);
    if (rank == victim) ::raise(SIGKILL);
    const std::string name = std::to_string(victim);
    Receipt receipt(endpoint, name, 2, 10);
    const bool receive_failed = receipt.wait().outcome == Outcome::lost;
    const bool was_told = watch.wait(name, false);
    // The other ranks continue: no rank leaves before all have seen the loss.
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer != rank && peer != victim) {
        send_by(endpoint, std::to_string(peer), 3, "seen", soon());
      }
    }
    char text[4];
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer != rank && peer != victim) {
        receive_by(endpoint, std::to_string(peer), 3, text, soon());
      }
    }
    return receive_failed && was_told && watch.reason(name) != "it has left";
  });
  for (int rank = 0; rank < kSize; ++rank) {
    const int status = world.wait(rank);
    if (rank == victim) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_EQ(status, 0) << rank;
    }
  }
}

TEST_P(Victims, AStoppedProcessIsNamedAtTheDeadline) {
  constexpr int kSize = 4;
  const int victim = GetParam();
  World world(kSize, Secret::random(), [&](TcpEndpoint& endpoint, int rank) {
    barrier(endpoint, rank, kSize);
    if (rank == victim) ::raise(SIGSTOP);
    const std::string expected =
        "[net] a message from " + std::to_string(victim) + " did not finish in time";
    try {
      char text[4];
      receive_by(endpoint, std::to_string(victim), 2, text, Deadline::after(Milliseconds(100)));
      return false;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::timeout && error.what() == expected;
    }
  });
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(world.wait(rank), 0) << rank;
  }
  world.kill(victim);
  EXPECT_TRUE(WIFSIGNALED(world.wait(victim)));
}

INSTANTIATE_TEST_SUITE_P(, Victims, testing::Values(0, 2));

class TcpPeers : public testing::Test {
 protected:
  TcpOptions options(const std::string& name) const { return options_for(name, secret_); }

  const Secret secret_ = Secret::random();
};

TEST_F(TcpPeers, ConnectByTheFirstAddressThatAnswersOfEitherFamily) {
  auto both = options("b");
  both.listen = {{"127.0.0.1", 0}, {"::1", 0}};
  TcpEndpoint b(both);
  const auto [v4, v6] = std::pair(b.addresses()[0], b.addresses()[1]);
  // A port that nobody listens at.
  int error = 0;
  const int closed = port_of(listen_at("127.0.0.1", 0, error));
  for (const auto& addresses : {std::vector<Address>{v4}, {v6}, {{"127.0.0.1", closed}, v6}}) {
    TcpEndpoint a(options("a"));
    a.connect("b", addresses, soon());
    send_by(a, "b", 1, "hello", soon());
    EXPECT_EQ(Receipt(b, "a", 1, 5).text(), "hello");
  }
}

TEST_F(TcpPeers, ComeBackUnderTheirName) {
  TcpEndpoint b(options("b"));
  Watch watch(b);
  for (size_t i = 1; i <= 3; ++i) {
    TcpEndpoint a(options("a"));
    a.connect("b", b.addresses(), soon());
    send_by(a, "b", 1, "hello", soon());
    EXPECT_TRUE(watch.wait("a", true, i));
    EXPECT_EQ(Receipt(b, "a", 1, 5).text(), "hello");
    a.disconnect("b");
    EXPECT_TRUE(watch.wait("a", false, i));
    Receipt lost(a, "b", 1, 5);
    EXPECT_EQ(lost.wait().reason, "b is not connected");
  }
}

// Messages posted before still arrive, however long they are; those posted after do not.
TEST_F(TcpPeers, PartWhenAllThatWasPostedHasArrived) {
  TcpEndpoint b(options("b")), a(options("a"));
  a.connect("b", b.addresses(), soon());
  Watch watch_a(a), watch_b(b);
  const std::string text = random_text(3'000'000, 1);
  send_owned(a, "b", 1, std::make_shared<const std::string>(text));
  send_owned(a, "b", 2, std::make_shared<const std::string>("last word"));
  a.part("b", kSoon);
  std::optional<Result> late;
  a.send("b", 3, "late", Priority::normal, [&](const Result& result) { late = result; });
  EXPECT_EQ(late->outcome, Outcome::lost);
  EXPECT_EQ(Receipt(b, "a", 1, text.size()).text(), text);
  EXPECT_EQ(Receipt(b, "a", 2, 100).text(), "last word");
  EXPECT_TRUE(watch_a.wait("b", false) && watch_b.wait("a", false));
  EXPECT_EQ(watch_b.reason("a"), "it has left");
  a.connect("b", b.addresses(), soon());
  send_by(a, "b", 1, "back", soon());
  EXPECT_EQ(Receipt(b, "a", 1, 100).text(), "back");
}

TEST_F(TcpPeers, PartFromOneThatDoesNotReadAfterATime) {
  TcpEndpoint b(options("b")), a(options("a"));
  a.connect("b", b.addresses(), soon());
  Watch watch(a);
  // Nobody takes it.
  send_owned(a, "b", 1, std::make_shared<const std::string>(random_text(3'000'000, 1)));
  a.part("b", Milliseconds(50));
  EXPECT_TRUE(watch.wait("b", false));
  EXPECT_EQ(watch.reason("b"), "it did not end its side");
}

// try_connect() can prove another secret than the endpoint's own.
TEST_F(TcpPeers, ProveAnotherSecretWhereTheyAreToldTo) {
  const Secret theirs = Secret::random();
  TcpEndpoint b(options_for("b", theirs)), a(options("a"));
  const auto failure = a.try_connect("b", b.addresses()[0], secret_, {soon()});
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, DialFailure::Kind::refused);
  EXPECT_FALSE(a.try_connect("b", b.addresses()[0], theirs, {soon()}));
  send_by(a, "b", 1, "hello", soon());
  EXPECT_EQ(Receipt(b, "a", 1, 5).text(), "hello");
}

TEST_F(TcpPeers, ListenWhereTheyAreGivenAListener) {
  int error = 0;
  Descriptor listener = listen_at("127.0.0.1", 0, error);
  const int port = port_of(listener);
  std::vector<Descriptor> listeners;
  listeners.push_back(std::move(listener));
  auto none = options("b");
  none.listen = {};
  TcpEndpoint b(none, std::move(listeners)), a(options("a"));
  a.connect("b", {{"127.0.0.1", port}}, soon());
  b.stop_listening();
  TcpEndpoint late(options("c"));
  const auto failure = late.try_connect("b", {"127.0.0.1", port}, secret_, {soon()});
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, DialFailure::Kind::unreachable);
}

TEST_F(TcpPeers, WithTheSameNameExcludeEachOther) {
  TcpEndpoint b(options("b")), a(options("a")), other(options("a"));
  a.connect("b", b.addresses(), soon());
  EXPECT_ERROR(
      other.connect("b", b.addresses(), Deadline::after(Milliseconds(300))), ErrorKind::timeout,
      "[net] could not connect to b in time; got another connection that was not complete");
  send_by(a, "b", 1, "hello", soon());
  EXPECT_EQ(Receipt(b, "a", 1, 5).text(), "hello");
}

TEST_F(TcpPeers, AreToldWhyTheyAreRefused) {
  auto few = options("b");
  few.most_peers = 1;
  TcpEndpoint b(few);
  auto plain = options("a");
  plain.protection = Protection::none;
  TcpEndpoint a(plain), same(options("b")), c(options("c")), d(options("d"));
  const auto refusal = [&](TcpEndpoint& from) -> std::string {
    try {
      from.connect("b", b.addresses(), soon());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(a),
            "[net] b refused to be connected; got protection none where b has encrypted");
  EXPECT_THAT(refusal(same), HasSubstr("an endpoint cannot connect to itself"));
  EXPECT_EQ(refusal(c), "");
  EXPECT_EQ(refusal(d), "[net] b refused to be connected; got b has 1 peers already");
  Watch watch(b);
  c.disconnect("b");
  EXPECT_TRUE(watch.wait("c", false));
  EXPECT_EQ(refusal(d), "") << "the place of who has left is free";
}

TEST_F(TcpPeers, MustHoldTheSecretAndBeWhoTheyAreTakenFor) {
  TcpEndpoint b(options("b"));
  TcpEndpoint stranger(options_for("a", Secret::random()));
  const auto problem = [&](TcpEndpoint& from, const std::string& peer) -> std::string {
    try {
      from.connect(peer, b.addresses(), Deadline::after(Milliseconds(300)));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::timeout);
      return error.what();
    }
    return "connected";
  };
  EXPECT_THAT(problem(stranger, "b"), HasSubstr("could not connect to b in time; got 127.0.0.1:"));
  EXPECT_THAT(problem(stranger, "b"), HasSubstr("it ended the connection: another secret"));
  TcpEndpoint a(options("a"));
  EXPECT_THAT(problem(a, "c"), HasSubstr("another endpoint's address"))
      << "the handshake of one endpoint is none for another";
  a.connect("b", b.addresses(), soon());
}

TEST_F(TcpPeers, WaitForAListenerThatIsNotThereYet) {
  int error = 0;
  const int port = port_of(listen_at("127.0.0.1", 0, error));
  TcpEndpoint a(options("a"));
  std::thread connects([&] { a.connect("b", {{"127.0.0.1", port}}, soon()); });
  auto late = options("b");
  late.listen = {{"127.0.0.1", port}};
  TcpEndpoint b(late);
  connects.join();
  send_by(b, "a", 1, "hello", soon());
  EXPECT_EQ(Receipt(a, "b", 1, 5).text(), "hello");
}

// A thread that sleeps in run_until() waits for what another one changes by act_on().
TEST_F(TcpPeers, ActsWakeThreadsThatWait) {
  constexpr int kTurns = 10;
  auto sleeping = options("a");
  sleeping.polls = false;
  TcpEndpoint a(sleeping);
  int turn = 0;
  bool is_late = false;
  std::atomic<int> seen = 0;
  a.after(kSoon, [&] { is_late = true; });
  std::thread waiter([&] {
    a.run_until(
        [&] {
          seen = turn;
          seen.notify_all();
          return turn == kTurns;
        },
        2 * kSoon);
    seen = kTurns;  // also if it came too late
    seen.notify_all();
  });
  for (int next = 1; next <= kTurns; ++next) {
    act_on(a, [&] { turn = next; });
    for (int last = seen; last < next; last = seen) seen.wait(last);
  }
  waiter.join();
  EXPECT_FALSE(is_late) << "only a timer woke the thread";
}

TEST_F(TcpPeers, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_ERROR(TcpEndpoint(options("")), ErrorKind::usage,
               "[net] an endpoint has no such name; got 0 bytes, expected 1 to 255");
  auto many = options("a");
  many.streams = 17;
  EXPECT_ERROR(TcpEndpoint{many}, ErrorKind::usage,
               "[net] an endpoint has no such number of streams; got 17, expected 1 to 16");
  TcpEndpoint first(options("b"));
  auto taken = options("a");
  taken.listen = first.addresses();
  EXPECT_ERROR(TcpEndpoint{taken}, ErrorKind::usage,
               "[net] cannot listen at port " + std::to_string(taken.listen[0].port) +
                   " of 127.0.0.1; got address already in use, expected an address of this "
                   "machine and a free port");
}

}  // namespace
}  // namespace troika::net
