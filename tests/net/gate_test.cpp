// The connection that is closed when strangers hold many. Each case has limits that allow only one
// choice.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <list>
#include <thread>
#include <vector>

#include "tests/net/endpoints.h"
#include "troika/net/socket.h"

namespace troika::net {
namespace {

// A time limit for strangers that never ends.
constexpr Milliseconds kForEver{std::chrono::hours(24)};

const Secret& gate_secret() {
  static const Secret secret = Secret::random();
  return secret;
}

class Serving {
 public:
  explicit Serving(GateLimits limits) : endpoint_(options(limits)) {}
  int port() const { return endpoint_.addresses()[0].port; }
  TcpEndpoint& endpoint() { return endpoint_; }

 private:
  static TcpOptions options(GateLimits limits) {
    auto options = options_for("test", gate_secret());
    options.limits = limits;
    return options;
  }

  TcpEndpoint endpoint_;
};

Descriptor connect_to(int port) {
  auto attempt = try_connect("127.0.0.1", port, soon());
  EXPECT_TRUE(attempt.socket) << attempt.problem;
  return std::move(attempt.socket);
}

using Failure = DialFailure::Kind;

// Returns how the handshake over the socket failed; nothing if it succeeded.
std::optional<Failure> failure_at(const Descriptor& socket, const Secret& secret,
                                  Deadline deadline = soon()) {
  const auto greeting = greet(socket.get(), secret, listener_name("test"), deadline);
  const auto* failure = std::get_if<DialFailure>(&greeting);
  return failure ? std::optional(failure->kind) : std::nullopt;
}

bool is_answered(int port) {
  return !failure_at(connect_to(port), gate_secret());
}

bool ends(const Descriptor& socket) {
  std::string bytes, reason;
  return wait_for(socket.get(), POLLIN, soon()) && !receive(socket.get(), bytes, reason) &&
         bytes.empty();
}

bool is_open(const Descriptor& socket) {
  return !wait_for(socket.get(), POLLIN, Deadline::after(Milliseconds(0)));
}

TEST(Gate, TheOldestStrangersGoWhenMoreCome) {
  const Serving serving({.strangers = 4, .proof_time = kForEver});
  std::vector<Descriptor> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(connect_to(serving.port()));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(ends(silent[static_cast<size_t>(i)])) << i;
  // This connection comes after all of these and counts as a stranger until its proof is read, so
  // the seventh may have been closed for it.
  EXPECT_TRUE(is_answered(serving.port()));
  for (int i = 7; i < 10; ++i) EXPECT_TRUE(is_open(silent[static_cast<size_t>(i)])) << i;
}

TEST(Gate, StrangersGoWhereNoDescriptorIsLeft) {
  gate_secret();  // made before the fork, so that both processes have the same
  Pipe port = make_pipe();
  const pid_t server = ::fork();
  if (server == 0) {
    const rlimit few{40, 40};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const Serving serving({.strangers = 10'000, .proof_time = kForEver});
    const int number = serving.port();
    if (::write(port.write.get(), &number, sizeof(number)) != sizeof(number)) ::_exit(2);
    ::pause();
    ::_exit(0);
  }
  int number = 0;
  ASSERT_EQ(::read(port.read.get(), &number, sizeof(number)), static_cast<ssize_t>(sizeof(number)));
  std::vector<Descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect_to(number));
  EXPECT_TRUE(is_answered(number));
  EXPECT_TRUE(ends(silent.front()));
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

TEST(Gate, AStrangersTimeIsOver) {
  const Serving serving({.strangers = 10'000, .proof_time = Milliseconds(20)});
  const auto silent = connect_to(serving.port());
  EXPECT_TRUE(ends(silent));
}

TEST(Gate, NewcomersBeyondTheLimitWaitUntilOthersAreAdmittedOrGo) {
  const Serving serving({.newcomers = 2});
  std::list<Descriptor> proven;
  for (int i = 0; i < 2; ++i) {
    proven.push_back(connect_to(serving.port()));
    EXPECT_EQ(failure_at(proven.back(), gate_secret()), std::nullopt);
  }
  const auto third = connect_to(serving.port());
  EXPECT_EQ(failure_at(third, gate_secret(), Deadline::after(Milliseconds(100))), Failure::silent);
  proven.pop_front();
  EXPECT_TRUE(wait_for(third.get(), POLLIN, soon()));
}

// No connection is accepted before the owner has room.
TEST(Gate, WhoComesWhileThereIsNoRoomWaits) {
  Serving serving({});
  std::atomic<bool> has_room = false;
  serving.endpoint().accept_while([&] { return has_room.load(); });
  const auto early = connect_to(serving.port());
  EXPECT_EQ(failure_at(early, gate_secret(), Deadline::after(Milliseconds(50))), Failure::silent);
  has_room = true;
  serving.endpoint().after(Duration(0), [] {});  // it asks again after each event
  EXPECT_TRUE(wait_for(early.get(), POLLIN, soon()));
}

TEST(Gate, CountsWhoDidNotProveTheSecret) {
  Serving serving({});
  const auto other = connect_to(serving.port());
  EXPECT_EQ(failure_at(other, Secret::random()), Failure::refused);
  const auto foreign = connect_to(serving.port());
  std::string_view text = "GET / HTTP/1.0";
  std::string reason;
  EXPECT_TRUE(send_some(foreign.get(), text, reason));
  EXPECT_TRUE(ends(foreign));
  EXPECT_EQ(serving.endpoint().unwelcome().unproven, 1) << "who spoke as an endpoint does";
}

}  // namespace
}  // namespace troika::net
