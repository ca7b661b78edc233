#include "troika/net/requests.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/net/endpoints.h"
#include "tests/support/faulty_endpoint.h"
#include "troika/net/simulated_network.h"

namespace troika::net {
namespace {

using test::FaultyEndpoint;

constexpr Channel kChannel = 100;

TEST(Requests, AreAnsweredOverSockets) {
  const Secret secret = Secret::random();
  TcpEndpoint a(options_for("a", secret)), b(options_for("b", secret));
  a.connect("b", b.addresses(), soon());
  Requests asks(a, kChannel, 1 << 20), answers(b, kChannel, 1 << 20);
  Answer kept;
  answers.answer_with([&](const std::string& peer, const std::string& question, Answer answer) {
    if (question == "later") {
      kept = std::move(answer);
    } else {
      answer(peer + " asked " + question);
    }
  });
  std::vector<std::string> got;
  const auto ask = [&](const std::string& question) {
    asks.ask("b", question, kSoon, [&](const Result& result, std::string answer) {
      EXPECT_EQ(result.outcome, Outcome::done) << result.reason;
      got.push_back(answer.substr(0, 20));
    });
  };
  const auto wait_for_answers = [&](size_t count) {
    return a.run_until([&] { return got.size() == count; }, kSoon);
  };
  ask("this");
  EXPECT_TRUE(wait_for_answers(1));
  ask("later");
  EXPECT_TRUE(b.run_until([&] { return static_cast<bool>(kept); }, kSoon));
  ask(std::string(1 << 19, 'x'));
  EXPECT_TRUE(wait_for_answers(2));
  std::thread([&] {
    kept("now");
    kept("only the first counts");
  }).join();
  EXPECT_TRUE(wait_for_answers(3));
  EXPECT_THAT(got, testing::ElementsAre("a asked this", "a asked xxxxxxxxxxxx", "now"));
}

TEST(Requests, EndWhenThePeerDoes) {
  const Secret secret = Secret::random();
  TcpEndpoint a(options_for("a", secret));
  Requests asks(a, kChannel, 100);
  std::vector<Outcome> outcomes;
  const auto ask = [&] {
    asks.ask("b", "?", kSoon,
             [&](const Result& result, const std::string&) { outcomes.push_back(result.outcome); });
  };
  ask();
  EXPECT_TRUE(a.run_until([&] { return !outcomes.empty(); }, kSoon));
  EXPECT_EQ(outcomes.back(), Outcome::lost) << "it is not connected";
}

// Every request has exactly one result, and a correct one, whatever the network does.
TEST(Requests, HaveOneResultEachOnABadNetwork) {
  SimulatedNetwork network(11);
  const test::Faults faults{.drop = 0.1, .duplicate = 0.2, .delay = 0.3};
  FaultyEndpoint a(network.add("a"), faults, 1), b(network.add("b"), faults, 2);
  network.connect("a", "b");
  Requests asks(a, kChannel, 100), answers(b, kChannel, 100);
  answers.answer_with([](const std::string&, const std::string& question, const Answer& answer) {
    answer(question + question);
  });
  std::vector<int> results(500), timeouts(500);
  for (size_t i = 0; i < results.size(); ++i) {
    asks.ask("b", std::to_string(i), std::chrono::milliseconds(100),
             [&, i](const Result& result, const std::string& answer) {
               ++results[i];
               if (result.outcome == Outcome::timeout) {
                 ++timeouts[i];
               } else {
                 EXPECT_EQ(answer, std::to_string(i) + std::to_string(i));
               }
             });
  }
  while (network.step(std::chrono::seconds(9))) {
  }
  EXPECT_THAT(results, testing::Each(1));
  // A question is lost with probability 0.1, its answer too; some are repeated.
  const auto lost = std::ranges::count(timeouts, 1);
  EXPECT_GT(lost, 20);
  EXPECT_LT(lost, 150);
}

TEST(Requests, TimeOutWhereNobodyAnswers) {
  SimulatedNetwork network(1);
  auto& a = network.add("a");
  network.add("b");
  network.connect("a", "b");
  Requests asks(a, kChannel, 100);
  std::optional<Result> result;
  asks.ask("b", "?", std::chrono::hours(1),
           [&](const Result& r, const std::string&) { result = r; });
  a.run_until([&] { return result.has_value(); }, std::chrono::hours(2));
  EXPECT_EQ(result->outcome, Outcome::timeout);
  EXPECT_EQ(network.now(), std::chrono::hours(1));
}

}  // namespace
}  // namespace troika::net
