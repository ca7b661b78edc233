// Two endpoints exchange messages, and the tests read the bytes that pass between them.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "tests/net/endpoints.h"
#include "troika/net/socket.h"

namespace troika::net {
namespace {

using testing::HasSubstr;
using testing::Not;

// Forwards one connection from its own port to another port, in both directions, and keeps all
// bytes.
class Wire {
 public:
  explicit Wire(int to)
      : listener_(listen_at("127.0.0.1", 0, error_)), thread_([this, to] { pass_on(to); }) {}
  ~Wire() { thread_.join(); }

  Address address() const { return {"127.0.0.1", port_of(listener_)}; }
  // Returns all bytes, when both ends have closed the connection.
  std::string bytes() {
    thread_.join();
    thread_ = std::thread([] {});
    return bytes_;
  }

 private:
  void pass_on(int to) {
    EXPECT_TRUE(wait_for(listener_.get(), POLLIN, soon()));
    const Descriptor near(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
    const Descriptor far = try_connect("127.0.0.1", to, soon()).socket;
    bool near_is_open = true, far_is_open = true;
    while (near_is_open || far_is_open) {
      std::array<pollfd, 2> ends{pollfd{near_is_open ? near.get() : -1, POLLIN, 0},
                                 pollfd{far_is_open ? far.get() : -1, POLLIN, 0}};
      ASSERT_GT(::poll(ends.data(), ends.size(), 30'000), 0);
      if (ends[0].revents) near_is_open = pass(near, far);
      if (ends[1].revents) far_is_open = pass(far, near);
    }
  }
  bool pass(const Descriptor& from, const Descriptor& to) {
    std::string bytes, reason;
    const bool is_open = receive(from.get(), bytes, reason);
    bytes_ += bytes;
    std::string_view unsent = bytes;
    while (!unsent.empty() && send_some(to.get(), unsent, reason)) {
      if (!unsent.empty()) wait_for(to.get(), POLLOUT, soon());
    }
    if (!is_open) ::shutdown(to.get(), SHUT_WR);
    return is_open;
  }

  int error_ = 0;
  const Descriptor listener_;
  std::string bytes_;
  std::thread thread_;
};

class TcpWire : public testing::TestWithParam<Protection> {};

TEST_P(TcpWire, HasNoSecretAndNoPayloadThatIsEncrypted) {
  const Secret secret = Secret::random();
  const std::string small = "the first of all gradients", large = random_text(300'000, 9);
  std::string bytes;
  {
    const auto with_protection = [&](const std::string& name) {
      auto options = options_for(name, secret);
      options.protection = GetParam();
      return options;
    };
    TcpEndpoint b(with_protection("b"));
    Wire wire(b.addresses().front().port);
    {
      TcpEndpoint a(with_protection("a"));
      a.connect("b", {wire.address()}, soon());
      Receipt first(b, "a", 1, 100), second(b, "a", 1, large.size());
      send_by(a, "b", 1, small, soon());
      send_by(a, "b", 1, large, soon());
      EXPECT_EQ(first.text(), small);
      EXPECT_EQ(second.text(), large);
    }
    bytes = wire.bytes();
  }
  EXPECT_GT(bytes.size(), large.size());
  EXPECT_THAT(bytes, Not(HasSubstr(secret.to_hex())));
  const std::string raw(reinterpret_cast<const char*>(secret.data()), Secret::kSize);
  EXPECT_EQ(bytes.find(raw), std::string::npos);
  const bool is_readable = GetParam() != Protection::encrypted;
  for (const std::string& part : {small, large.substr(0, 32), large.substr(200'000, 32)}) {
    EXPECT_EQ(bytes.find(part) != std::string::npos, is_readable);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, TcpWire,
                         testing::Values(Protection::none, Protection::authenticated,
                                         Protection::encrypted),
                         [](const auto& row) { return std::string(name(row.param)); });

}  // namespace
}  // namespace troika::net
