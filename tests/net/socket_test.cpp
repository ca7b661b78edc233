#include "troika/net/socket.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "troika/base/clock.h"

namespace {

constexpr const char* kName = "several.addresses";
std::vector<const char*> addresses;  // of kName
using Resolve = int (*)(const char*, const char*, const addrinfo*, addrinfo**);

Resolve system_resolver() {
  return reinterpret_cast<Resolve>(::dlsym(RTLD_NEXT, "getaddrinfo"));
}

}  // namespace

// In place of the system's, which knows a name with several addresses.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints,
                           addrinfo** list) {
  if (host == nullptr || std::string(host) != kName) {
    return system_resolver()(host, port, hints, list);
  }
  for (const char* address : addresses) {
    if (const int code = system_resolver()(address, port, hints, list); code != 0) return code;
    list = &(*list)->ai_next;
  }
  return 0;
}

namespace troika::net {
namespace {

constexpr std::chrono::seconds kPatience{30};

class SeveralAddresses : public testing::Test {
 protected:
  static std::string peer_of(const Descriptor& socket) {
    sockaddr_storage there{};
    socklen_t size = sizeof(there);
    ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&there), &size);
    char text[NI_MAXHOST] = {};
    ::getnameinfo(reinterpret_cast<sockaddr*>(&there), size, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST);
    return text;
  }

  int error_ = 0;
  Descriptor listener_ = listen_at("127.0.0.1", 0, error_);
};

TEST_F(SeveralAddresses, TheOneThatListensIsFound) {
  ASSERT_TRUE(listener_);
  for (const auto& each : std::vector<std::vector<const char*>>{
           {"127.0.0.1", "127.0.0.2"}, {"127.0.0.2", "127.0.0.3", "127.0.0.1"}}) {
    addresses = each;
    const auto attempt = try_connect(kName, port_of(listener_), Deadline::after(kPatience));
    ASSERT_TRUE(attempt.socket) << attempt.problem;
    EXPECT_EQ(peer_of(attempt.socket), "127.0.0.1");
  }
}

TEST_F(SeveralAddresses, OneThatDoesNotAnswerLeavesTimeForTheOthers) {
  ASSERT_TRUE(listener_);
  const int port = port_of(listener_);
  // Its queue of connections is full, so it does not answer.
  const auto listener = listen_at("127.0.0.2", port, error_);
  ASSERT_TRUE(listener);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const auto waiting = try_connect("127.0.0.2", port, Deadline::after(kPatience));
  ASSERT_TRUE(waiting.socket) << waiting.problem;
  addresses = {"127.0.0.2", "127.0.0.1"};
  const auto deadline = Deadline::after(std::chrono::seconds(3));
  const auto attempt = try_connect(kName, port, deadline);
  ASSERT_TRUE(attempt.socket) << attempt.problem;
  EXPECT_FALSE(deadline.passed());
  EXPECT_EQ(peer_of(attempt.socket), "127.0.0.1");
}

TEST_F(SeveralAddresses, TheLastProblemIsTold) {
  const int port = port_of(listener_);
  listener_.reset();
  addresses = {"127.0.0.2", "127.0.0.1"};
  const auto attempt = try_connect(kName, port, Deadline::after(kPatience));
  EXPECT_FALSE(attempt.socket);
  EXPECT_THAT(attempt.problem, testing::HasSubstr("refused"));
}

// Unsent bytes in a socket delay everything that is written after them on a slow link.
TEST(TunedSockets, KeepFewBytesThatCannotBeSent) {
  int error = 0;
  const Descriptor listener = listen_at("127.0.0.1", 0, error);
  const auto deadline = Deadline::after(kPatience);
  const Descriptor socket = try_connect("127.0.0.1", port_of(listener), deadline).socket;
  ASSERT_TRUE(socket);
  tune(socket.get());
  // Nobody reads: first the receiver's buffer fills, then the sender's.
  const std::string bytes(16 << 10, 'x');
  while (::send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  int unsent = 0;
  ASSERT_EQ(::ioctl(socket.get(), SIOCOUTQNSD, &unsent), 0);
  EXPECT_LE(unsent, 2 * kMostUnsent);
}

}  // namespace
}  // namespace troika::net
