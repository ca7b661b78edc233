// States that peers of a simulated network download.
#include "troika/swarm/state_transfer.h"

#include <gmock/gmock.h>

#include "tests/swarm/simulated_swarm.h"
#include "troika/base/random.h"

namespace troika::swarm {
namespace {

std::shared_ptr<const std::string> random_bytes(size_t count, uint64_t seed) {
  Random random(seed);
  std::string bytes(count, '\0');
  for (auto& byte : bytes) byte = static_cast<char>(random());
  return std::make_shared<const std::string>(std::move(bytes));
}

// Donors b, c, ... and a peer a that has no state.
class Donors {
 public:
  explicit Donors(size_t count) : states(count) {
    for (size_t i = 0; i <= count; ++i) {
      auto& endpoint = network.add(name(i));
      transfers.push_back(std::make_unique<StateTransfer>(endpoint, [this, i] {
        ++taken;
        return i == 0 ? nullptr : states[i - 1];
      }));
      endpoints.push_back(&endpoint);
      if (i > 0) network.connect(name(0), name(i));
    }
  }
  static std::string name(size_t i) { return std::string(1, static_cast<char>('a' + i)); }
  void download(int64_t least_epoch = 0, double at_most = 60) {
    result.reset();
    is_done = false;
    transfers[0]->download(
        least_epoch,
        [this] {
          std::vector<std::string> names;
          for (size_t i = 1; i < endpoints.size(); ++i) names.push_back(name(i));
          return names;
        },
        seconds(at_most),
        [this](const std::optional<State>& state) {
          result = state;
          is_done = true;
        });
  }

  net::SimulatedNetwork network{1, {.bytes_per_second = 1e8}};
  std::vector<std::shared_ptr<const std::string>> states;
  int taken = 0;
  std::vector<net::Endpoint*> endpoints;
  std::vector<std::unique_ptr<StateTransfer>> transfers;
  std::optional<State> result;
  bool is_done = false;
};

TEST(States, ArriveBitForBit) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{256} << 10, (size_t{3} << 20) + 7}) {
    Donors run(1);
    run.states[0] = random_bytes(size, size);
    run.transfers[1]->set_version({.epoch = 5, .history = "h", .is_partial = true});
    run.download(5);
    EXPECT_FALSE(run.is_done);
    pass(run.network, 1);
    ASSERT_TRUE(run.result) << size;
    EXPECT_EQ(*run.result->bytes, *run.states[0]);
    EXPECT_EQ(run.result->version, (StateVersion{5, "h", true}));
    EXPECT_EQ(run.taken, 1);
  }
}

TEST(States, ContinueAtAnotherDonorWithTheSameBytes) {
  Donors run(2);
  run.states[0] = run.states[1] = random_bytes(size_t{4} << 20, 1);
  run.download();
  pass(run.network, .02);
  EXPECT_FALSE(run.is_done);
  EXPECT_GT(run.transfers[0]->received(), size_t{1} << 20);
  run.network.stop("b");
  run.network.cut("a", "b");
  pass(run.network, 2);
  ASSERT_TRUE(run.result);
  EXPECT_EQ(*run.result->bytes, *run.states[0]);
  EXPECT_LE(run.transfers[0]->received(), (size_t{4} << 20) + (size_t{1} << 20));
}

TEST(States, BeginAgainAtADonorWithOtherBytes) {
  Donors run(2);
  run.states[0] = random_bytes(size_t{4} << 20, 1);
  run.states[1] = random_bytes((size_t{4} << 20) + 5, 2);
  run.download();
  pass(run.network, .02);
  run.network.stop("b");  // its silence is noticed by the time-out
  pass(run.network, 12);
  ASSERT_TRUE(run.result);
  EXPECT_EQ(*run.result->bytes, *run.states[1]);
}

TEST(States, DonorsServeTheBegunStateWhileTheyTrainOn) {
  Donors run(1);
  const auto first = run.states[0] = random_bytes(size_t{4} << 20, 1);
  run.transfers[1]->set_version({.epoch = 1});
  run.download();
  pass(run.network, .02);
  run.states[0] = random_bytes(size_t{4} << 20, 2);
  run.transfers[1]->set_version({.epoch = 2});
  pass(run.network, 1);
  ASSERT_TRUE(run.result);
  EXPECT_EQ(*run.result->bytes, *first);
  EXPECT_EQ(run.result->version.epoch, 1);
}

TEST(States, EarlierEpochsAreRefused) {
  Donors run(2);
  run.states[0] = random_bytes(10, 1);
  run.states[1] = random_bytes(10, 2);
  run.transfers[1]->set_version({.epoch = 3});
  run.transfers[2]->set_version({.epoch = 4});
  run.download(4);
  pass(run.network, 1);
  ASSERT_TRUE(run.result);
  EXPECT_EQ(run.result->version.epoch, 4);
  run.download(5, 3);
  pass(run.network, 2.9);
  EXPECT_FALSE(run.is_done);
  pass(run.network, 1);
  EXPECT_TRUE(run.is_done);
  EXPECT_FALSE(run.result);
}

TEST(States, ADonorWithoutAStateIsAskedAgain) {
  Donors run(1);
  run.download();
  pass(run.network, 1);
  EXPECT_FALSE(run.is_done);
  run.states[0] = random_bytes(10, 1);
  pass(run.network, 1);
  ASSERT_TRUE(run.result);
}

// A donor that never comes to an end.
TEST(States, ADownloadEndsInTimeAtASlowDonor) {
  Donors run(1);
  run.transfers[1].reset();
  net::Requests liar(*run.endpoints[1], kStates, 1 << 20);
  const std::string chunk(size_t{256} << 10, 'x');
  liar.answer_with([&](const std::string&, const std::string& text, const net::Answer& answer) {
    const auto at = text.find("\"offset\":") + 9;
    const auto head = R"({"epoch":9,"history":"","is_partial":false,"digest":"00",)"
                      R"("total":1000000000,"offset":)" +
                      text.substr(at, text.find_first_not_of("0123456789", at) - at) + "}\n";
    run.endpoints[1]->after(seconds(.2), [answer, head, &chunk] { answer(head + chunk); });
  });
  run.download(0, 3);
  pass(run.network, 2.9);
  EXPECT_FALSE(run.is_done);
  EXPECT_GT(run.transfers[0]->received(), chunk.size());
  pass(run.network, 1);
  EXPECT_TRUE(run.is_done);
  EXPECT_FALSE(run.result);
}

TEST(States, ADonorHoldsNoSnapshotsWithoutDownloads) {
  Donors run(1);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    run.states[0] = random_bytes(10, 1 + static_cast<uint64_t>(epoch));
    run.transfers[1]->set_version({.epoch = epoch});
    run.download(epoch);
    pass(run.network, 1);
    ASSERT_TRUE(run.result);
  }
  const std::weak_ptr<const std::string> last = run.states[0];
  run.states[0].reset();
  EXPECT_FALSE(last.expired());
  pass(run.network, 120);
  EXPECT_TRUE(last.expired());
}

TEST(States, LiesAreRefused) {
  const auto state = random_bytes(10, 1);
  for (const auto& lie : {std::string(R"({"epoch":9,"history":"","is_partial":false,"digest":"00",)"
                                      R"("total":3,"offset":0})"
                                      "\nabc"),
                          std::string(R"({"epoch":9,"history":"","is_partial":false,"digest":"00",)"
                                      R"("total":9000000000000,"offset":0})"
                                      "\nabc"),
                          std::string("no line"), std::string(), std::string("{}\n")}) {
    Donors run(2);
    run.transfers[1].reset();
    net::Requests liar(*run.endpoints[1], kStates, 1 << 20);
    int asked = 0;
    liar.answer_with([&](const std::string&, const std::string&, const net::Answer& answer) {
      ++asked;
      answer(lie);
    });
    run.states[1] = state;
    run.download();
    pass(run.network, 1);
    ASSERT_TRUE(run.result) << lie;
    EXPECT_EQ(*run.result->bytes, *state);
    EXPECT_EQ(asked, 1);
  }
  Donors run(1);
  net::send_owned(*run.endpoints[0], "b", kStates, std::make_shared<const std::string>("x"));
  pass(run.network, 1);
}

}  // namespace
}  // namespace troika::swarm
