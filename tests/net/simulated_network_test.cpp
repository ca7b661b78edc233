// The simulated network keeps the promises of Endpoint, and the same seed gives the same run.
#include "troika/net/simulated_network.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/net/endpoints.h"
#include "tests/support/errors.h"
#include "tests/support/faulty_endpoint.h"

namespace troika::net {
namespace {

using test::FaultyEndpoint;

TEST(Simulation, MessagesOfEverySizeArriveInOrder) {
  SimulatedNetwork network(1);
  auto& a = network.add("a");
  auto& b = network.add("b");
  network.connect("a", "b");
  std::vector<std::string> texts;
  for (const size_t size : {0, 10, 100'000, 3, 1'000'000, 70'000}) {
    texts.push_back(random_text(size, size));
  }
  for (const auto& text : texts) a.send("b", 1, std::string_view(text), Priority::normal, {});
  for (const auto& text : texts) EXPECT_EQ(Receipt(b, "a", 1, 1'000'000).text(), text);
}

TEST(Simulation, TimeIsThatOfTheClockAndDeadlinesCostNone) {
  SimulatedNetwork network(1, {std::chrono::milliseconds(10), std::chrono::milliseconds(10), 1e6});
  auto& a = network.add("a");
  auto& b = network.add("b");
  network.connect("a", "b");
  const std::string text(50'000 - kFrameHead, 'x');
  Receipt receipt(b, "a", 1, text.size());
  a.send("b", 1, std::string_view(text), Priority::normal, {});
  EXPECT_EQ(receipt.text(), text);
  EXPECT_EQ(network.now(), std::chrono::milliseconds(60)) << "50 ms on the link, 10 of latency";
  network.stop("a");
  char buffer[1];
  EXPECT_ERROR(receive_by(b, "a", 1, buffer, Deadline::after(std::chrono::hours(9))),
               ErrorKind::timeout, "[net] a message from a did not finish in time");
}

TEST(Simulation, ConnectionsOfAnEndpointShareItsAccess) {
  constexpr auto kLatency = std::chrono::milliseconds(10);
  const std::string text(50'000 - kFrameHead, 'x');
  for (const bool is_up : {true, false}) {
    SimulatedNetwork network(1, {kLatency, kLatency});
    auto& slow =
        network.add("slow", is_up ? SimulatedAccess{.up = 1e6} : SimulatedAccess{.down = 1e6});
    std::vector<std::unique_ptr<Receipt>> receipts;
    for (const std::string name : {"a", "b"}) {
      auto& other = network.add(name);
      network.connect("slow", name);
      auto& from = is_up ? slow : other;
      auto& to = is_up ? other : slow;
      receipts.push_back(std::make_unique<Receipt>(to, from.name(), 1, text.size()));
      from.send(to.name(), 1, std::string_view(text), Priority::normal, {});
    }
    EXPECT_EQ(receipts[0]->text(), text);
    EXPECT_EQ(network.now(), std::chrono::milliseconds(60)) << is_up;
    EXPECT_EQ(receipts[1]->text(), text);
    EXPECT_EQ(network.now(), std::chrono::milliseconds(110)) << is_up;
    const auto traffic = network.traffic("slow");
    EXPECT_EQ(is_up ? traffic.sent : traffic.received, 100'000u);
  }
}

TEST(Simulation, AShortMessageMayStandForALongOne) {
  SimulatedNetwork network(1, {.least_latency = std::chrono::milliseconds(10),
                               .most_latency = std::chrono::milliseconds(10),
                               .bytes_per_second = 1e6,
                               .weigh = [](Channel channel, uint64_t bytes) {
                                 return channel == 1 ? 1000 * bytes : bytes;
                               }});
  auto& a = network.add("a");
  auto& b = network.add("b");
  network.connect("a", "b");
  const std::string text(1000, 'x');
  Receipt light(b, "a", 2, text.size());
  Receipt heavy(b, "a", 1, text.size());
  a.send("b", 1, std::string_view(text), Priority::normal, {});
  EXPECT_EQ(heavy.text(), text);
  EXPECT_EQ(network.traffic("a").sent, 1'000'000 + kFrameHead);
  EXPECT_GT(network.now(), std::chrono::milliseconds(1010));
  EXPECT_LT(network.now(), std::chrono::milliseconds(1011));
  a.send("b", 2, std::string_view(text), Priority::normal, {});
  EXPECT_EQ(light.text(), text);
  EXPECT_EQ(network.traffic("b").received, 1'001'000 + 2 * kFrameHead);
}

// Ranks pass a sum around a ring. Returns the ranks and times of all steps.
std::string ring(uint64_t seed, int ranks) {
  SimulatedNetwork network(seed);
  std::vector<Endpoint*> endpoints;
  for (int i = 0; i < ranks; ++i) endpoints.push_back(&network.add(std::to_string(i)));
  for (int i = 0; i < ranks; ++i) {
    network.connect(std::to_string(i), std::to_string((i + 1) % ranks));
  }
  std::string trace;
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  for (int i = 0; i < ranks; ++i) {
    auto& endpoint = *endpoints[static_cast<size_t>(i)];
    endpoint.handle(1, 100, [&, i](const std::string&, const std::string& text) {
      trace += fmt::format("{} {} {}\n", i, text, network.now().count());
      if (i == 0) return;
      auto& next = texts[static_cast<size_t>(i)];
      next = std::to_string(std::stoi(text) + i);
      endpoint.send(std::to_string((i + 1) % ranks), 1, std::string_view(next), Priority::normal,
                    {});
    });
  }
  endpoints[0]->send("1", 1, "0", Priority::normal, {});
  while (network.step(std::chrono::seconds(9))) {
  }
  return trace;
}

TEST(Simulation, OfOneSeedIsAlwaysTheSame) {
  const std::string trace = ring(7, 1024);
  EXPECT_THAT(trace, testing::HasSubstr(fmt::format("\n0 {} ", 1023 * 1024 / 2)));
  EXPECT_EQ(ring(7, 1024), trace);
  EXPECT_NE(ring(8, 1024), trace);
}

TEST(Simulation, ACutIsToldToBothEnds) {
  SimulatedNetwork network(1);
  auto& a = network.add("a");
  auto& b = network.add("b");
  network.connect("a", "b");
  Watch at_a(a), at_b(b);
  Receipt receipt(a, "b", 1, 10);
  network.cut("a", "b");
  EXPECT_EQ(receipt.wait().outcome, Outcome::lost);
  EXPECT_TRUE(at_a.wait("b", false));
  EXPECT_TRUE(at_b.wait("a", false));
}

class Faulty : public testing::Test {
 protected:
  // Sends 1000 numbers; returns those that arrive, in the order of arrival.
  std::vector<int> arrivals(const test::Faults& faults) {
    SimulatedNetwork network(3);
    FaultyEndpoint a(network.add("a"), faults, 5);
    auto& b = network.add("b");
    network.connect("a", "b");
    std::vector<int> got;
    b.handle(1, 100,
             [&](const std::string&, const std::string& text) { got.push_back(std::stoi(text)); });
    std::vector<std::string> texts;
    for (int i = 0; i < 1000; ++i) texts.push_back(std::to_string(i));
    for (const auto& text : texts) a.send("b", 1, std::string_view(text), Priority::normal, {});
    while (network.step(std::chrono::seconds(9))) {
    }
    return got;
  }
};

TEST_F(Faulty, DropsDuplicatesAndReordersAsItIsTold) {
  std::vector<int> all(1000);
  for (int i = 0; i < 1000; ++i) all[static_cast<size_t>(i)] = i;
  EXPECT_EQ(arrivals({}), all);
  EXPECT_NEAR(static_cast<double>(arrivals({.drop = 0.3}).size()), 700, 60);
  EXPECT_NEAR(static_cast<double>(arrivals({.duplicate = 0.3}).size()), 1300, 60);
  const auto delayed = arrivals({.delay = 0.3});
  EXPECT_NE(delayed, all);
  EXPECT_THAT(delayed, testing::UnorderedElementsAreArray(all));
}

TEST_F(Faulty, CutsAPeerOffFromBothSides) {
  SimulatedNetwork network(3);
  FaultyEndpoint a(network.add("a"), {}, 5);
  auto& b = network.add("b");
  network.connect("a", "b");
  Watch watch(a);
  Receipt receipt(a, "b", 1, 10);
  a.cut("b");
  b.send("a", 1, "lost", Priority::normal, {});
  EXPECT_EQ(receipt.wait().outcome, Outcome::lost);
  EXPECT_TRUE(watch.wait("b", false));
  EXPECT_ERROR(send_by(a, "b", 1, "x", soon()), ErrorKind::peer,
               "[net] a message to b failed; got it was cut off");
}

}  // namespace
}  // namespace troika::net
