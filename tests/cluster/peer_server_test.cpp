// Who goes when strangers hold connections, with limits that leave one way out each.
#include "troika/cluster/peer_server.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <list>
#include <thread>
#include <vector>

#include "tests/cluster/rendezvous_world.h"
#include "troika/cluster/listen.h"
#include "troika/net/client.h"

namespace troika::cluster {
namespace {

// No stranger's time is ever over.
constexpr Milliseconds kForEver{std::chrono::hours(24)};

const net::Secret& secret() {
  static const net::Secret secret = net::Secret::random();
  return secret;
}

// Answers nobody.
class Service : public PeerServer {
 public:
  Service(Listening here, PeerLimits limits)
      : PeerServer(std::move(here.socket), net::ServerHandshake(secret(), "test"), limits) {}

 private:
  void handle(Peer&, const Frame&) override {}
  void part_from(Peer&) override {}
  std::optional<Deadline> deadline() const override { return std::nullopt; }
  void late() override {}
};

class Serving {
 public:
  explicit Serving(PeerLimits limits) : Serving(listen_for("127.0.0.1", 0), limits) {}
  ~Serving() {
    stop_.wake();
    thread_.join();
  }
  int port() const { return port_; }

 private:
  Serving(Listening here, PeerLimits limits)
      : port_(here.port),
        service_(std::move(here), limits),
        thread_([this] { service_.run(stop_); }) {}

  const int port_;
  net::Waker stop_;
  Service service_;
  std::thread thread_;
};

net::Descriptor connect(int port) {
  auto attempt = net::try_connect("127.0.0.1", port, Deadline::after(kLong));
  EXPECT_TRUE(attempt.socket) << attempt.problem;
  return std::move(attempt.socket);
}

bool is_answered(int port) {
  const auto socket = connect(port);
  const auto greeting = net::greet(socket.get(), secret(), "test", Deadline::after(kLong));
  return greeting.proof == net::Proof::given;
}

bool ends(const net::Descriptor& socket) {
  std::string bytes, reason;
  return net::wait_for(socket.get(), POLLIN, Deadline::after(kLong)) &&
         !net::receive(socket.get(), bytes, reason) && bytes.empty();
}

bool is_open(const net::Descriptor& socket) {
  return !net::wait_for(socket.get(), POLLIN, Deadline::after(Milliseconds(0)));
}

TEST(PeerServer, TheOldestStrangersGoWhenMoreCome) {
  const Serving serving({.strangers = 4, .proof_time = kForEver});
  std::vector<net::Descriptor> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(connect(serving.port()));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(ends(silent[static_cast<size_t>(i)])) << i;
  // It comes after all of these, and is a stranger, too, until its proof is read: the seventh may
  // have gone for it.
  EXPECT_TRUE(is_answered(serving.port()));
  for (int i = 7; i < 10; ++i) EXPECT_TRUE(is_open(silent[static_cast<size_t>(i)])) << i;
}

TEST(PeerServer, StrangersGoWhereNoDescriptorIsLeft) {
  secret();  // made before the fork, so that both processes have the same
  net::Pipe port = net::make_pipe();
  const pid_t server = in_child([&] {
    const rlimit few{40, 40};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const Serving serving({.strangers = 10'000, .proof_time = kForEver});
    const int number = serving.port();
    if (::write(port.write.get(), &number, sizeof(number)) != sizeof(number)) ::_exit(2);
    ::pause();
  });
  int number = 0;
  ASSERT_EQ(::read(port.read.get(), &number, sizeof(number)), static_cast<ssize_t>(sizeof(number)));
  std::vector<net::Descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect(number));
  EXPECT_TRUE(is_answered(number));
  EXPECT_TRUE(ends(silent.front()));
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

TEST(PeerServer, AStrangersTimeIsOver) {
  const Serving serving({.strangers = 10'000, .proof_time = Milliseconds(20)});
  const auto silent = connect(serving.port());
  EXPECT_TRUE(ends(silent));
}

TEST(PeerServer, NewcomersBeyondTheLimitWaitUntilOthersAreAdmittedOrGo) {
  const Serving serving({.newcomers = 2});
  std::list<net::Descriptor> proven;
  for (int i = 0; i < 2; ++i) {
    proven.push_back(connect(serving.port()));
    const auto greeting = net::greet(proven.back().get(), secret(), "test", Deadline::after(kLong));
    EXPECT_EQ(greeting.proof, net::Proof::given);
  }
  const auto third = connect(serving.port());
  const auto waiting =
      net::greet(third.get(), secret(), "test", Deadline::after(Milliseconds(100)));
  EXPECT_EQ(waiting.proof, net::Proof::silent);
  proven.pop_front();
  EXPECT_TRUE(net::wait_for(third.get(), POLLIN, Deadline::after(kLong)));
}

}  // namespace
}  // namespace troika::cluster
