// Peers of a simulated network that lie, flood, or are ahead of all others.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/swarm/averaging_group.h"
#include "tests/swarm/trainers.h"
#include "troika/base/error.h"
#include "troika/swarm/averaging_wire.h"

namespace troika::swarm {
namespace {

// A peer that leads whoever asks it, and begins with texts that no peer would send.
class FalseLeader {
 public:
  explicit FalseLeader(Trainers& run)
      : identity_(identity_of(99)),
        endpoint_(run.network.add(identity_.name())),
        directory_(endpoint_, identity_,
                   {.run = "run", .kinds = {{kSeeking, is_seeking}, {kProgress, is_progress}}},
                   clock_of(run.network)) {
    endpoint_.listen_to_peers(
        [this](const net::PeerChange& change) { directory_.take_change(change); });
    endpoint_.handle(kMatchmaking, 1 << 20, [this](const std::string& peer, const std::string& t) {
      auto message = nlohmann::json::parse(t);
      if (message["kind"] != 0) return;
      ++asked;
      message["members"] = {{peer, message["gathered"]}, {identity_.name(), "garbage"}};
      for (const int kind : {1, 3}) {
        message["kind"] = kind;
        message["deadline"] = 1000;
        net::send_owned(endpoint_, peer, kMatchmaking,
                        std::make_shared<const std::string>(message.dump()));
      }
    });
    const auto deadline = directory_.now().count();
    directory_.publish(kSeeking, {}, 0, std::chrono::minutes(5),
                       fmt::format(R"({{"key":"0 ","deadline":{},"is_client":false}})", deadline));
    directory_.publish(
        kProgress, {}, 0, std::chrono::minutes(5),
        fmt::format(R"({{"samples":0,"samples_per_second":0.0,"is_client":false,"history":"",)"
                    R"("is_partial":false,"is_paused":false,"refresh":60000,"schema":"{}"}})",
                    run.all.front()->peer->schema()));
    for (const auto& trainer : run.all) {
      run.network.connect(trainer->identity->name(), identity_.name());
    }
  }

  int asked = 0;

 private:
  const Identity identity_;
  net::Endpoint& endpoint_;
  GossipDirectory directory_;
};

TEST(HostilePeers, AGroupWithoutReducersIsDropped) {
  Trainers run(1);
  run.add(64, {.mode = Mode::client, .averaging_time = std::chrono::seconds(5)});
  FalseLeader leader(run);
  pass(run.network, 20);
  EXPECT_GT(leader.asked, 0);
  EXPECT_GT(run.all[0]->steps, 0);
}

TEST(HostilePeers, AClientThatIsAheadOfAllNodesComesBack) {
  Trainers run(2);
  for (size_t i = 0; i < 2; ++i) run.add(8);
  run.add(8, {.mode = Mode::client, .version = {.epoch = 100, .history = "ahead"}});
  pass(run.network, 30);
  EXPECT_EQ(run.all[2]->loads, 1);
  EXPECT_GT(run.all[2]->steps, 2);
  EXPECT_EQ(run.all[0]->loads, 0);
}

TEST(HostilePeers, AFloodOfBeginningsDisplacesNobodyElses) {
  SimulatedGroup group({Mode::node, Mode::node, Mode::node}, {100, 100, 100});
  for (uint64_t id = 100; id < 4300; ++id) {
    net::send_owned(*group.endpoints[2], "a", kAveraging,
                    std::make_shared<const std::string>(
                        encoded({.kind = AveragingHead::Kind::ready, .group = id})));
  }
  pass(group.network, 1);
  for (const size_t i : {1, 2, 0}) {
    group.begin(i, std::make_shared<std::vector<double>>(300, i), 1,
                {.sender_timeout = seconds(2)});
    pass(group.network, .5);
  }
  pass(group.network, 10);
  // The flood may cost its sender its place, but nobody else.
  EXPECT_EQ(group.results.at(0).parts.at(1).averaged, 100u);
}

TEST(HostilePeers, AnAverageThatIsNotFiniteIsRefused) {
  SimulatedGroup group({Mode::node, Mode::node}, {50, 50});
  for (const size_t i : {0, 1}) {
    group.begin(i, std::make_shared<std::vector<double>>(100, 1e308), 10);
  }
  pass(group.network, 5);
  for (const size_t i : {0, 1}) {
    EXPECT_FALSE(group.results.at(i).is_complete());
    EXPECT_EQ(group.results.at(i).weight, 0);
  }
}

TEST(HostilePeers, AFalseAverageIsRefused) {
  for (const auto& [weight, number] : std::vector<std::pair<double, double>>{
           {1., INFINITY}, {1., NAN}, {NAN, 2.}, {-1., 2.}, {INFINITY, 2.}}) {
    SimulatedGroup group({Mode::node, Mode::node}, {1, 1});
    group.averagers[1].reset();
    const auto values = std::make_shared<std::vector<double>>(2, 1.);
    group.begin(0, values, 1, {.sender_timeout = seconds(1)});
    auto text = encoded({.kind = AveragingHead::Kind::averaged,
                         .group = group.group.id,
                         .first = 1,
                         .count = 1,
                         .weight = weight});
    text.append(reinterpret_cast<const char*>(&number), sizeof(number));
    net::send_owned(*group.endpoints[1], "a", kAveraging,
                    std::make_shared<const std::string>(text));
    pass(group.network, 5);
    EXPECT_EQ(values->at(1), 1);
    EXPECT_EQ(group.results.at(0).parts.at(1).averaged, 0u);
  }
}

TEST(HostilePeers, WeightsAreBounded) {
  SimulatedGroup group({Mode::node}, {1});
  EXPECT_THROW(group.begin(0, std::make_shared<std::vector<double>>(1, 10), 1e308), Error);
}

TEST(HostilePeers, EpochsWithoutASuccessorAreRefused) {
  Record record{.body = R"({"samples":0,"samples_per_second":0.0,"is_client":false,"history":"",)"
                        R"("is_partial":false,"is_paused":false,"refresh":1,"schema":""})"};
  EXPECT_TRUE(is_progress(record));
  record.epoch = INT64_MAX;
  EXPECT_FALSE(is_progress(record));
}

}  // namespace
}  // namespace troika::swarm
