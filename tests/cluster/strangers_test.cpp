// Connections of strangers to the ports of a run, from before its first rank starts until it ends.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <future>

#include "tests/cluster/launch_process.h"
#include "tests/cluster/rendezvous_world.h"
#include "troika/base/random.h"
#include "troika/cluster/discovery/listen.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/elastic/agent_wire.h"
#include "troika/cluster/rendezvous/rendezvous_server.h"
#include "troika/net/hello.h"

namespace troika::cluster {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int kMembers = 5;

std::string random_bytes(Random& random, size_t size) {
  std::string bytes(size, '\0');
  for (auto& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// The messages of strangers. None of them may get a byte in return.
std::vector<std::string> what_strangers_say(const std::string& recorded) {
  Random random(11);
  const Hello hello{.rank = 1, .world_size = kMembers, .host = "h", .patience_ms = 1, .left_ms = 1};
  const std::string frame = encode({Message::hello, 0, "", to_json(hello)});
  const net::ClientHandshake other(net::Secret::random(), "ranks:1");
  return {"",
          "G",
          "GET / HTTP/1.0\r\n\r\n",
          random_bytes(random, 10),
          random_bytes(random, 100'000),
          std::string(net::kClientMagic),
          std::string(net::kClientMagic) + random_bytes(random, 64),
          std::string(net::kClientMagic) + std::string(1 << 20, '\xff'),
          std::string(net::kServerMagic) + random_bytes(random, 64),
          "TROIKA-C" + frame,
          frame,
          other.first_message(),
          other.first_message().substr(0, 40),
          other.first_message() + frame,
          recorded,
          recorded.substr(0, net::kHandshakeSize),
          recorded.substr(0, net::kHandshakeSize + 30)};
}

// Sends the messages of strangers to a port, from before anything listens there until this object
// is destroyed.
class Strangers {
 public:
  Strangers(int port, const std::string& recorded)
      : thread_([this, port, sayings = what_strangers_say(recorded)] {
          while (!over_) {
            for (const auto& saying : sayings) say(port, saying);
          }
        }) {}
  ~Strangers() {
    over_ = true;
    thread_.join();
  }
  void wait_for_more() const {
    const int before = said_;
    while (said_ < before + 40) std::this_thread::yield();
  }

 private:
  void say(int port, const std::string& bytes) {
    const auto deadline = Deadline::after(kLong);
    auto attempt = net::try_connect("127.0.0.1", port, deadline);
    if (!attempt.socket) return std::this_thread::yield();
    std::string reason, answer;
    std::string_view left = bytes;
    while (!left.empty() && net::send_some(attempt.socket.get(), left, reason)) {
      if (!left.empty() && !net::wait_for(attempt.socket.get(), POLLOUT, deadline)) break;
    }
    net::receive(attempt.socket.get(), answer, reason);
    EXPECT_EQ(answer, "");
    ++said_;
    // Some connections stay open.
    open_.push_back(std::move(attempt.socket));
    if (open_.size() > 40) {
      net::receive(open_.front().get(), answer, reason);
      EXPECT_EQ(answer, "") << "to a stranger that waited";
      open_.erase(open_.begin());
    }
  }

  std::atomic<bool> over_ = false;
  std::atomic<int> said_ = 0;
  std::vector<net::Descriptor> open_;
  std::thread thread_;
};

// Everything that a client with the secret sends to join, as an attacker could record it. No
// listener receives it.
struct Recording {
  Recording(const net::Secret& key, const std::string& listener)
      : client(key, net::listener_name(listener)), first(client.first_message()) {}

  std::string hello(const net::SessionKeys& keys) const {
    net::Session session(keys);
    return session.sealer.seal(net::encode(net::Hello{.name = "recorded"}));
  }
  std::string all(const net::Secret& key, const std::string& listener) const {
    net::ServerHandshake server(key, net::listener_name(listener));
    const auto answer = server.answer(first);
    return first + hello(*client.finish(answer->message));
  }

  const net::ClientHandshake client;
  const std::string first;
};
std::string recording(const RunSecret& secret, const std::string& listener) {
  const auto key = role_key(secret, Role::ranks);
  return Recording(key, listener).all(key, listener);
}

TEST(Strangers, DoNotDisturbTheGathering) {
  const int port = free_port();
  const RunSecret secret{net::Secret::random(), "a test"};
  // Records a client of another session of the same run: the listener would answer its first
  // message.
  const Strangers strangers(port, recording(secret, "ranks:1"));
  auto early = world(kMembers, port);
  early.pop_back();
  auto others = std::async(std::launch::async, [&] {
    return run_all(early, secret, [&](Rendezvous& meeting, int rank) {
      meeting.set("from " + std::to_string(rank), "x");
      strangers.wait_for_more();
      all_meet(meeting, "talked", kMembers);
      meeting.leave();
    });
  });
  strangers.wait_for_more();  // while one is still to come
  const auto errors =
      run_all({member(kMembers - 1, kMembers, port)}, secret, [&](Rendezvous& meeting, int) {
        for (int rank = 0; rank < kMembers - 1; ++rank) {
          meeting.get("from " + std::to_string(rank), Deadline::after(kLong));
        }
        all_meet(meeting, "talked", kMembers);
        meeting.leave();
      });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(others.get(), Each(""));
}

TEST(Strangers, AReplayedHandshakeEarnsNothing) {
  const int port = free_port();
  const RunSecret secret{net::Secret::random(), "a test"};
  auto members = world(kMembers, port);
  const Environment last = members.back();
  members.pop_back();
  const auto join = [&](Rendezvous& meeting, int) {
    all_meet(meeting, "here", kMembers);
    meeting.leave();
  };
  auto run = std::async(std::launch::async, [&] { return run_all(members, secret, join); });
  // A client by hand, so that its bytes can be sent again exactly.
  const auto deadline = Deadline::after(kLong);
  const auto dial = [&] {
    net::Attempt attempt;
    while (!attempt.socket) attempt = net::try_connect("127.0.0.1", port, deadline);
    return std::move(attempt.socket);
  };
  const auto say = [](const net::Descriptor& socket, std::string_view bytes) {
    std::string reason;
    EXPECT_TRUE(net::send_some(socket.get(), bytes, reason) && bytes.empty());
  };
  const auto all_of = [&](const net::Descriptor& socket) {
    std::string bytes, reason;
    while (net::wait_for(socket.get(), POLLIN, deadline) &&
           net::receive(socket.get(), bytes, reason)) {
    }
    return bytes;
  };
  const Recording recorded(role_key(secret, Role::ranks), listener_name(Role::ranks, port));
  const auto socket = dial();
  say(socket, recorded.first);
  std::string answer, reason;
  while (answer.size() < net::kHandshakeSize) {
    ASSERT_TRUE(net::wait_for(socket.get(), POLLIN, deadline));
    ASSERT_TRUE(net::receive(socket.get(), answer, reason));
  }
  const std::string hello = recorded.hello(recorded.client.finish(answer).value());
  say(socket, hello);
  ASSERT_TRUE(net::wait_for(socket.get(), POLLIN, deadline)) << "a reply to the first time";
  for (const std::string& replay : {recorded.first, recorded.first + hello, hello}) {
    const auto again = dial();
    say(again, replay);
    EXPECT_EQ(all_of(again), "") << replay.size();
  }
  EXPECT_THAT(run_all({last}, secret, join), Each(""));
  EXPECT_THAT(run.get(), Each(""));
}

// A stranger who has the key of one role only.
TEST(Strangers, TheKeyOfOneRoleOpensNoOther) {
  const int port = free_port();
  const RunSecret secret{net::Secret::random(), "a test"};
  using Kind = net::DialFailure::Kind;
  const Roster roster(kMembers, "run", "here");
  int error = 0;
  Listening here{net::listen_at("127.0.0.1", port, error), "127.0.0.1", port};
  const RendezvousServer server(std::move(here), secret, roster, {});
  for (const Role role : {Role::ranks, Role::relay, Role::launches}) {
    net::TcpEndpoint client(
        {.name = unique_name(), .secret = role_key(secret, role), .listen = {}});
    const auto failure = client.try_connect(listener_name(Role::ranks, port), {"127.0.0.1", port},
                                            role_key(secret, role), {Deadline::after(kLong)});
    ASSERT_EQ(failure.has_value(), role != Role::ranks);
    EXPECT_EQ(failure.value_or(net::DialFailure{Kind::refused}).kind, Kind::refused);
  }
}

TEST(Strangers, ARankWithAnotherSecretIsToldAndSoAreThoseWhoWaitForIt) {
  const int port = free_port();
  const RunSecret secret{net::Secret::random(), "a test"};
  const RunSecret other{net::Secret::random(), "another test"};
  auto members = world(kMembers, port);
  const Environment last = members.back();
  members.pop_back();
  auto waiting = std::async(std::launch::async,
                            [&] { return run_all(members, secret, nothing, Milliseconds(6000)); });
  const auto errors = run_all({last}, other, nothing);
  EXPECT_THAT(errors[0],
              StartsWith("[cluster] could not authenticate with rank 0 at " + place(port) +
                         "; got no answer to our proof (its connection closed), "
                         "expected the same run secret and version of Troika there "
                         "(ours is from another test; "));
  for (const auto& error : waiting.get()) {
    EXPECT_THAT(error, StartsWith("[cluster] ranks did not arrive within 6 s; got 0-3, expected "
                                  "also 4 (they must reach rank 0 at " +
                                  place(port) + "; "));
    EXPECT_THAT(error, HasSubstr(" connections failed authentication there: do all have the same "
                                 "run secret?)"));
    for (const auto& own : {secret, other}) EXPECT_THAT(error, Not(HasSubstr(own.secret.to_hex())));
  }
}

TEST(Strangers, AServerWithAnotherSecretIsNotBelieved) {
  const RunSecret secret{net::Secret::random(), "a test"};
  const Listening here = listen_for("127.0.0.1", 0);
  std::thread server([&] {
    EXPECT_TRUE(net::wait_for(here.socket.get(), POLLIN, Deadline::after(kLong)));
    const net::Descriptor peer(::accept(here.socket.get(), nullptr, nullptr));
    // It saw the first message and knows the form of the answer.
    const std::string answer = std::string(net::kServerMagic) + std::string(64, 'x');
    std::string_view unsent = answer;  // a new socket has room for it
    std::string reason;
    EXPECT_TRUE(net::send_some(peer.get(), unsent, reason));
    // Ends when the rank has ended.
    net::wait_for(peer.get(), POLLIN, Deadline::after(kLong));
  });
  EXPECT_THAT(run_all({member(1, kMembers, here.port)}, secret, nothing)[0],
              StartsWith("[cluster] could not authenticate with rank 0 at " + place(here.port) +
                         "; got an answer made with another run secret"));
  server.join();
}

TEST(Strangers, ManySilentOnesLeaveRoomForTheRanks) {
  constexpr int kSilent = 300;
  const int port = free_port();
  // Rank 0 is a process of its own, which has descriptors for fewer.
  const pid_t rank_0 = in_child([&] {
    const rlimit few{128, 128};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const auto meeting = join(member(0, kMembers, port));
    all_meet(*meeting, "here", kMembers);
    all_meet(*meeting, "more strangers", kMembers);
    meeting->leave();
  });
  std::vector<net::Descriptor> silent;
  const auto flood = [&] {
    const auto deadline = Deadline::after(kLong);
    for (int i = 0; i < kSilent && !deadline.passed();) {
      auto attempt = net::try_connect("127.0.0.1", port, deadline);
      if (!attempt.socket) continue;
      silent.push_back(std::move(attempt.socket));
      ++i;
    }
  };
  flood();
  auto members = world(kMembers, port);
  members.erase(members.begin());
  const auto errors = run_all(members, [&](Rendezvous& meeting, int rank) {
    all_meet(meeting, "here", kMembers);
    if (rank == 1) flood();
    all_meet(meeting, "more strangers", kMembers);
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
  int status = -1;
  ::waitpid(rank_0, &status, 0);
  EXPECT_EQ(status, 0);
}

// The hosting launch's end of an elastic run is the same server: what is its own is what a stranger
// who speaks its protocol could do.
TEST(Strangers, DoNotDisturbAnElasticRun) {
  const TemporaryFolder folder;
  const int port = free_port();
  const AgentHello hello{.host = "stranger", .pid = 1, .hosts = true, .options = {}};
  const std::string takeover =
      encode({Message::join, 0, "", to_json(hello)}) + encode({Message::depart, 0});
  auto options = shell(fmt::format("cd {}; : > $RANK.tmp; mv $RANK.tmp $RANK; until [ -e finish ]; "
                                   "do sleep 0.05; done; echo done",
                                   folder.path().string()),
                       2);
  options.num_nodes = 2;
  options.elastic = {.min_nodes = 2,
                     .endpoint = fmt::format("127.0.0.1:{}", port),
                     .id = "a name",
                     .last_call_timeout = Milliseconds(0),
                     .join_timeout = kLong};
  const auto exists = [&](const char* name) { return std::filesystem::exists(folder / name); };
  // Processes are forked before any thread starts, and begin when the strangers have begun.
  net::Pipe gate = net::make_pipe();
  const auto wait = [&](LaunchOptions&) {
    char byte;
    if (::read(gate.read.get(), &byte, 1) != 1) ::_exit(97);
  };
  Launch first(options, wait), second(options, wait);
  const Strangers strangers(port, "TROIKA-C" + takeover);
  EXPECT_EQ(::write(gate.write.get(), "ab", 2), 2);
  EXPECT_TRUE(comes_into(folder.path(), [&] { return exists("0") && exists("3"); }));
  strangers.wait_for_more();
  write_file_atomically(folder / "finish", "");
  for (auto* launch : {&first, &second}) {
    EXPECT_EQ(launch->wait(), 0) << launch->err();
    EXPECT_THAT(launch->err(), Not(HasSubstr("stranger")));
    EXPECT_THAT(launch->err(), Not(HasSubstr("round 1")));
  }
}

}  // namespace
}  // namespace troika::cluster
