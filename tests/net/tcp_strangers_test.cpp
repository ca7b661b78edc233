// Peers that connect without the secret, and peers with it that break the rules.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "tests/net/endpoints.h"
#include "tests/support/process_usage.h"
#include "troika/net/socket.h"

namespace troika::net {
namespace {

class Strangers : public testing::Test {
 protected:
  Strangers() {
    auto options = options_for("b", secret_);
    options.limits = {.strangers = 8, .proof_time = Milliseconds(50)};
    b_ = std::make_unique<TcpEndpoint>(options);
  }
  Descriptor connect() const {
    return try_connect("127.0.0.1", b_->addresses()[0].port, soon()).socket;
  }
  // Returns the bytes that the endpoint answers with before it ends the connection.
  std::string answer_to(const std::string& bytes) const {
    const Descriptor socket = connect();
    return answer_on(socket, bytes);
  }
  static std::string answer_on(const Descriptor& socket, const std::string& bytes) {
    std::string_view unsent = bytes;
    std::string answer, reason;
    while (true) {
      const bool sends = send_some(socket.get(), unsent, reason) && !unsent.empty();
      const auto events = static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN);
      EXPECT_TRUE(wait_for(socket.get(), events, soon()));
      if (!receive(socket.get(), answer, reason)) return answer;
    }
  }
  // Peers that hold the secret still get through.
  void expect_service() {
    TcpEndpoint a(options_for("a", secret_));
    a.connect("b", b_->addresses(), soon());
    send_by(a, "b", 1, "hello", soon());
    EXPECT_EQ(Receipt(*b_, "a", 1, 5).text(), "hello");
  }
  std::string first_message() const {
    return ClientHandshake(secret_, listener_name("b")).first_message();
  }

  const Secret secret_ = Secret::random();
  std::unique_ptr<TcpEndpoint> b_;
};

TEST_F(Strangers, GetNoByteWhateverTheySay) {
  for (const size_t size : {size_t{1}, size_t{71}, size_t{72}, size_t{100'000}}) {
    EXPECT_EQ(answer_to(random_text(size, size)), "") << size;
    EXPECT_EQ(answer_to(std::string(kClientMagic) + random_text(size, size)), "") << size;
  }
  EXPECT_EQ(answer_to(std::string(100'000, '\xff')), "") << "huge lengths";
  const Secret other = Secret::random();
  EXPECT_EQ(answer_to(ClientHandshake(other, listener_name("b")).first_message()), "");
  EXPECT_EQ(answer_to(ClientHandshake(secret_, listener_name("c")).first_message()), "");
  EXPECT_EQ(answer_to(first_message().substr(0, 40)), "") << "half a handshake";
  EXPECT_EQ(answer_to(first_message() + "x"), "") << "nobody continues before the answer";
  expect_service();
}

TEST_F(Strangers, WhoReplayARecordedHandshakeGetNothing) {
  const std::string first = first_message();
  {
    const Descriptor recorded = connect();
    std::string_view unsent = first;
    std::string answer, reason;
    ASSERT_TRUE(send_some(recorded.get(), unsent, reason));
    ASSERT_TRUE(wait_for(recorded.get(), POLLIN, soon()));
    receive(recorded.get(), answer, reason);
    EXPECT_EQ(answer.size(), kHandshakeSize);
    // Without the keys of the session, the following bytes are not a record.
    EXPECT_EQ(answer_on(recorded, random_text(200, 1)), "");
  }
  EXPECT_EQ(answer_to(first), "");
  expect_service();
}

TEST_F(Strangers, WhoStaySilentHoldFewDescriptors) {
  const auto before = test::process_usage();
  std::vector<Descriptor> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connect());
  for (int i = 0; i < 200; i += 2) {
    std::string_view half = kClientMagic;
    std::string reason;
    send_some(silent[static_cast<size_t>(i)].get(), half, reason);
  }
  expect_service();
  const auto after = test::process_usage();
  // Both ends are in this process: those of the test, and those of the endpoint.
  EXPECT_LE(after.descriptors - before.descriptors, 200 + 8 + 4);
  EXPECT_LE(after.resident_bytes - before.resident_bytes, int64_t{16} << 20);
  std::string bytes, reason;
  for (const Descriptor& socket : silent) {
    while (receive(socket.get(), bytes, reason)) {
      ASSERT_TRUE(wait_for(socket.get(), POLLIN, soon())) << "silence ends a connection";
    }
  }
  EXPECT_EQ(bytes, "");
}

TEST_F(Strangers, AFloodOfThemDoesNotKeepMembersOut) {
  std::atomic<bool> is_over = false;
  std::thread flood([&] {
    for (uint64_t i = 0; !is_over; ++i) {
      const Descriptor socket = connect();
      const std::string bytes = random_text(i % 200, i);
      std::string_view unsent = bytes;
      std::string reason;
      if (socket) send_some(socket.get(), unsent, reason);
    }
  });
  for (int i = 0; i < 20; ++i) expect_service();
  is_over = true;
  flood.join();
}

// A member whose frames break the rules.
class Members : public Strangers, public testing::WithParamInterface<Protection> {
 protected:
  Members() {
    auto options = options_for("b", secret_);
    options.protection = GetParam();
    b_ = std::make_unique<TcpEndpoint>(options);
  }
  // A connection that may send frames, and its keys.
  Dialed join(const std::string& name) {
    return std::get<Dialed>(
        dial("b", b_->addresses()[0], secret_, {name, 1, GetParam(), 0, 1}, {soon()}));
  }
  std::string head(FrameCipher& cipher, const FrameHead& head) const {
    std::array<char, kFrameHead> plain;
    encode(head, plain);
    if (GetParam() == Protection::none) return {plain.begin(), plain.end()};
    std::array<char, kSealedHead> sealed;
    cipher.seal_head(plain, sealed);
    return {sealed.begin(), sealed.end()};
  }
};

TEST_P(Members, WhoBreakTheRulesAreCutOff) {
  const std::vector<std::vector<FrameHead>> breaches = {
      {{FrameKind::message, kEagerBytes + 1, 1, 0, 0}},
      {{FrameKind::data, 100, 1, 77, 0}},
      {{FrameKind::grant, 0, 0, 5, 0}},
      {{FrameKind::credit, 0, 0, 0, 1}},
      {{FrameKind::announce, 0, 1, 5, ~uint64_t{0}}, {FrameKind::data, 100, 1, 5, 0}},
      std::vector<FrameHead>(kCreditWindow / 64 + 1, {FrameKind::announce, 0, 1, 5, 1 << 20}),
      std::vector<FrameHead>(kCreditWindow / 64 + 1, {FrameKind::message, 0, 1, 0, 0})};
  Watch watch(*b_);
  for (size_t i = 0; i < breaches.size(); ++i) {
    const std::string name = "member" + std::to_string(i);
    const Dialed dialed = join(name);
    FrameCipher cipher(dialed.keys.send);
    std::string bytes;
    for (const FrameHead& breach : breaches[i]) bytes += head(cipher, breach);
    // A sender that floods is first asked to pause.
    const size_t most =
        breaches[i].size() <= 2 ? 0 : head(cipher, {.kind = FrameKind::hold}).size();
    EXPECT_LE(answer_on(dialed.socket, bytes).size(), most) << i;
    EXPECT_TRUE(watch.wait(name, false));
    EXPECT_THAT(watch.reason(name), testing::HasSubstr("broken frame")) << i;
  }
}

class ProtectedMembers : public Members {};

TEST_P(ProtectedMembers, WhoseFramesAreChangedOnTheirWayAreCutOff) {
  Watch watch(*b_);
  const Dialed dialed = join("member");
  FrameCipher cipher(dialed.keys.send);
  std::string bytes = head(cipher, {FrameKind::message, 0, 1, 0, 0});
  bytes[5] = static_cast<char>(bytes[5] ^ 1);
  EXPECT_EQ(answer_on(dialed.socket, bytes), "");
  EXPECT_TRUE(watch.wait("member", false));
}

INSTANTIATE_TEST_SUITE_P(, Members,
                         testing::Values(Protection::none, Protection::authenticated,
                                         Protection::encrypted),
                         [](const auto& info) { return std::string(name(info.param)); });
INSTANTIATE_TEST_SUITE_P(, ProtectedMembers,
                         testing::Values(Protection::authenticated, Protection::encrypted),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace troika::net
