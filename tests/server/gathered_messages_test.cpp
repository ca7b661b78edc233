#include "troika/server/gathered_messages.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/net/simulated_network.h"

namespace troika::server {
namespace {

using testing::ElementsAre;

constexpr net::Channel kSmall = 5, kOther = 6;

// Two endpoints; `messages` are those that `to` has received.
class GatheredMessages : public testing::Test {
 protected:
  GatheredMessages() : network_(1), from_(network_.add("from")), to_(network_.add("to")) {
    network_.connect("from", "to");
    for (const auto channel : {kSmall, kOther}) {
      to_.handle(channel, 1 << 20, [this](const std::string&, std::string message) {
        messages_.push_back(std::move(message));
      });
    }
  }
  void send(net::Endpoint& endpoint, net::Channel channel, const std::string& text) {
    net::send_owned(
        endpoint, "to", channel, std::make_shared<const std::string>(text), net::Priority::normal,
        [this](const net::Result& result) { completed_ += result.outcome == net::Outcome::done; });
  }
  void wait_for_messages(size_t count) {
    ASSERT_TRUE(to_.run_until([&] { return messages_.size() >= count; }, std::chrono::seconds(9)));
  }

  net::SimulatedNetwork network_;
  net::Endpoint& from_;
  net::Endpoint& to_;
  std::vector<std::string> messages_;
  int completed_ = 0;
};

std::vector<std::string> parts(const std::string& message) {
  std::vector<std::string> all;
  for_each_message(message, [&](std::string one) { all.push_back(std::move(one)); });
  return all;
}

TEST_F(GatheredMessages, LeaveTogether) {
  GatheringEndpoint endpoint(from_, kSmall);
  send(endpoint, kSmall, "alone");
  wait_for_messages(1);
  endpoint.begin();
  for (const char* text : {"a", "", "12345678", "123456789"}) send(endpoint, kSmall, text);
  endpoint.end();
  wait_for_messages(2);
  send(endpoint, kSmall, "after");
  wait_for_messages(3);
  EXPECT_THAT(parts(messages_[0]), ElementsAre("alone"));
  EXPECT_THAT(parts(messages_[1]), ElementsAre("a", "", "12345678", "123456789"));
  EXPECT_THAT(parts(messages_[2]), ElementsAre("after"));
  EXPECT_TRUE(from_.run_until([&] { return completed_ == 6; }, std::chrono::seconds(9)));
}

// The network may change the order of three messages, but those before and after a large one do not
// leave together.
TEST_F(GatheredMessages, LeaveBeforeALargeOne) {
  GatheringEndpoint endpoint(from_, kSmall);
  const std::string large(100'000, 'x');
  endpoint.begin();
  send(endpoint, kSmall, "first");
  send(endpoint, kSmall, large);
  send(endpoint, kSmall, "last");
  endpoint.end();
  wait_for_messages(3);
  std::vector<std::string> all;
  for (const auto& message : messages_) {
    ASSERT_THAT(parts(message), testing::SizeIs(1));
    all.push_back(parts(message)[0]);
  }
  EXPECT_THAT(all, testing::UnorderedElementsAre("first", large, "last"));
}

TEST_F(GatheredMessages, OfOtherChannelsLeaveAtOnce) {
  GatheringEndpoint endpoint(from_, kSmall);
  endpoint.begin();
  send(endpoint, kSmall, "waits");
  send(endpoint, kOther, "now");
  wait_for_messages(1);
  EXPECT_THAT(messages_, ElementsAre("now"));
  endpoint.end();
  wait_for_messages(2);
}

TEST_F(GatheredMessages, OfATurnLeaveAtItsEnd) {
  GatheringEndpoint endpoint(from_, kSmall);
  endpoint.begin_turn();
  send(endpoint, kSmall, "a");
  send(endpoint, kSmall, "b");
  wait_for_messages(1);
  EXPECT_THAT(parts(messages_[0]), ElementsAre("a", "b"));
  endpoint.begin_turn();  // its timer ends with the endpoint
}

TEST_F(GatheredMessages, ThatEndEarlyAreRefused) {
  GatheringEndpoint endpoint(from_, kSmall);
  endpoint.begin();
  send(endpoint, kSmall, "a");
  send(endpoint, kSmall, "b");
  endpoint.end();
  wait_for_messages(1);
  const auto cut = messages_[0].substr(0, messages_[0].size() - 8);
  EXPECT_ERROR(parts(cut), ErrorKind::failure, "[server] a message ends early; got 32 bytes");
}

}  // namespace
}  // namespace troika::server
