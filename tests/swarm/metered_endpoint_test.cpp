// Caps on bandwidth, and whole peers that have them.
#include "troika/swarm/metered_endpoint.h"

#include <gmock/gmock.h>

#include "tests/swarm/trainers.h"
#include "troika/swarm/averaging.h"
#include "troika/swarm/state_transfer.h"

namespace troika::swarm {
namespace {

constexpr net::Channel kOther = 77;
constexpr size_t kMessage = 50'000;

// Two endpoints, of which the first has a cap of 100 kB/s each way.
class Metered : public testing::Test {
 protected:
  Metered()
      : capped_(network_.add("capped"), {.up = 100e3, .down = 100e3}),
        other_(network_.add("other")) {
    capped_.listen_to_peers([this](const net::PeerChange& change) { changes_.push_back(change); });
    network_.connect("capped", "other");
    pass(network_, .01);
  }
  void send(net::Endpoint& from, const std::string& to, net::Channel channel,
            size_t bytes = kMessage) {
    net::send_owned(from, to, channel, std::make_shared<const std::string>(bytes, 'x'),
                    net::Priority::bulk,
                    [this](const net::Result& result) { outcomes_.push_back(result.outcome); });
  }
  // Counts what comes.
  void count(net::Endpoint& at, net::Channel channel) {
    at.handle(channel, 2 * kMessage,
              [this](const std::string&, const std::string& message) { came_ += message.size(); });
  }

  size_t came_ = 0;
  std::vector<net::Outcome> outcomes_;
  std::vector<net::PeerChange> changes_;
  net::SimulatedNetwork network_{1};
  MeteredEndpoint capped_;
  net::Endpoint& other_;
};

TEST_F(Metered, SendsNumbersAtTheRateOfItsCap) {
  count(other_, kAveraging);
  for (int i = 0; i < 100; ++i) send(capped_, "other", kAveraging);
  // A full bucket, of a quarter of a second, and one message may come at once.
  for (int second = 1; second <= 40; ++second) {
    pass(network_, 1);
    EXPECT_LE(came_, 100e3 * (second + .25) + kMessage + 1e3) << second;
    EXPECT_GE(came_, 100e3 * second - kMessage) << second;
    EXPECT_LE(came_, capped_.traffic().sent);
  }
  pass(network_, 15);
  EXPECT_EQ(came_, 100 * kMessage);
  EXPECT_EQ(capped_.traffic().sent, 100 * kMessage);
  EXPECT_EQ(outcomes_, std::vector(100, net::Outcome::done));
  EXPECT_FALSE(capped_.is_sending());
}

TEST_F(Metered, ReceivesNumbersAtTheRateOfItsCap) {
  count(capped_, kStateAnswers);
  for (int i = 0; i < 100; ++i) send(other_, "capped", kStateAnswers);
  for (int second = 1; second <= 40; ++second) {
    pass(network_, 1);
    EXPECT_LE(came_, 100e3 * (second + .25) + 2 * kMessage) << second;
    EXPECT_GE(came_, 100e3 * second - kMessage) << second;
  }
  pass(network_, 15);
  EXPECT_EQ(came_, 100 * kMessage);
  EXPECT_EQ(capped_.traffic().received, 100 * kMessage);
}

TEST_F(Metered, LetsSmallMessagesOvertakeNumbers) {
  size_t small = 0;
  other_.handle(kOther, 10, [&](const std::string&, const std::string&) { ++small; });
  capped_.handle(kOther, 10, [&](const std::string&, const std::string&) { ++small; });
  count(other_, kAveraging);
  for (int i = 0; i < 20; ++i) send(capped_, "other", kAveraging);
  send(capped_, "other", kOther, 10);
  send(other_, "capped", kOther, 10);
  pass(network_, .1);
  EXPECT_EQ(small, 2U);
  EXPECT_LT(came_, 20 * kMessage);
}

TEST_F(Metered, LosesWhatWaitsWithTheConnection) {
  count(other_, kAveraging);
  for (int i = 0; i < 20; ++i) send(capped_, "other", kAveraging);
  pass(network_, 1);
  const auto sent = outcomes_.size();
  EXPECT_LT(sent, 5U);
  EXPECT_TRUE(capped_.is_sending());
  network_.cut("capped", "other");
  pass(network_, 1);
  EXPECT_FALSE(capped_.is_sending());
  ASSERT_EQ(outcomes_.size(), 20U);
  for (size_t i = sent; i < 20; ++i) EXPECT_EQ(outcomes_[i], net::Outcome::lost);
  ASSERT_EQ(changes_.size(), 2U);
  EXPECT_FALSE(changes_.back().is_up);
  // Both directions go on with the next connection.
  network_.connect("capped", "other");
  count(capped_, kStateAnswers);
  came_ = 0;
  send(capped_, "other", kAveraging);
  send(other_, "capped", kStateAnswers);
  pass(network_, 3);
  EXPECT_EQ(came_, 2 * kMessage);
}

TEST_F(Metered, CancelsWhatWaits) {
  send(capped_, "other", kAveraging);
  net::Outcome outcome{};
  const std::string text(kMessage, 'x');
  const auto ticket = capped_.send("other", kAveraging, text, net::Priority::bulk,
                                   [&](const net::Result& result) { outcome = result.outcome; });
  capped_.cancel(ticket, net::Outcome::timeout);
  EXPECT_EQ(outcome, net::Outcome::timeout);
  count(other_, kAveraging);
  pass(network_, 10);
  EXPECT_EQ(came_, kMessage);
}

// Peers of which one has a cap make the same steps as ever, and the cap holds.
TEST(Metering, PeersKeepTheirCap) {
  constexpr double kRate = 20e3, kSeconds = 60;
  Trainers run(13);
  run.add(8, {.bandwidth = 1e6});
  auto& capped = run.add(8, {.bandwidth = kRate}, {.up = kRate, .down = kRate});
  run.add(8, {.bandwidth = 1e6});
  run.checked = [](size_t, const SwarmStep& step, const std::vector<double>&) {
    EXPECT_THAT(step.members, testing::SizeIs(3)) << step.epoch;
    EXPECT_TRUE(step.averaging.is_complete()) << step.epoch;
    // The shares follow the cap.
    EXPECT_EQ(step.averaging.parts.size(), 2U);
  };
  pass(run.network, kSeconds);
  EXPECT_GT(capped.steps, 10);
  const auto [sent, received] = capped.metered->traffic();
  const double most = kRate * (kSeconds + .25) + 8 * kNumbers;
  EXPECT_GT(sent, capped.steps * 8 * kNumbers);
  EXPECT_LE(static_cast<double>(sent), most);
  EXPECT_LE(static_cast<double>(received), most);
}

}  // namespace
}  // namespace troika::swarm
