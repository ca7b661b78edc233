// Records that spread among the peers of a simulated network.
#include "troika/swarm/gossip.h"

#include <gmock/gmock.h>

#include "tests/swarm/simulated_swarm.h"
#include "troika/base/random.h"

namespace troika::swarm {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

class Gossip {
 public:
  explicit Gossip(size_t peers, GossipLimits limits = {}, WallTime skew = {}) {
    for (size_t i = 0; i < peers; ++i) {
      identities.push_back(std::make_unique<Identity>(identity_of(i)));
      endpoints.push_back(&network.add(identities[i]->name()));
      directories.push_back(
          std::make_unique<GossipDirectory>(*endpoints[i], *identities[i], rules,
                                            clock_of(network, i == 0 ? skew : WallTime{}), limits));
      endpoints[i]->listen_to_peers([this, i](const net::PeerChange& change) {
        changes += !change.is_up;
        directories[i]->take_change(change);
      });
    }
  }
  void connect(size_t a, size_t b) { network.connect(endpoints[a]->name(), endpoints[b]->name()); }
  void cut(size_t a, size_t b) { network.cut(endpoints[a]->name(), endpoints[b]->name()); }
  void publish(size_t peer, const std::string& body, WallTime lifetime = 60s) {
    directories[peer]->publish("kind", "", 0, lifetime, body);
  }
  std::vector<std::string> bodies(size_t peer) {
    std::vector<std::string> found;
    for (const auto& record : directories[peer]->find("kind")) found.push_back(record.body);
    std::ranges::sort(found);
    return found;
  }

  const RecordRules rules{.run = "run", .kinds = {{"kind", [](const Record&) { return true; }}}};
  net::SimulatedNetwork network{1};
  int changes = 0;  // connections that ended, at each end
  std::vector<std::unique_ptr<Identity>> identities;
  std::vector<net::Endpoint*> endpoints;
  std::vector<std::unique_ptr<GossipDirectory>> directories;
};

TEST(Gossip, TheNewestRecordReachesAllOfAChain) {
  Gossip swarm(5);
  for (size_t i = 0; i < 4; ++i) swarm.connect(i, i + 1);
  std::vector<std::string> seen;
  swarm.directories[4]->watch([&](const Record& record) { seen.push_back(record.body); });
  swarm.publish(0, "first");
  pass(swarm.network, .1);
  EXPECT_THAT(swarm.bodies(4), ElementsAre("first"));
  swarm.publish(0, "second");
  swarm.publish(2, "other");
  pass(swarm.network, .1);
  for (size_t i = 0; i < 5; ++i) EXPECT_THAT(swarm.bodies(i), ElementsAre("other", "second"));
  swarm.publish(0, "");
  pass(swarm.network, .1);
  for (size_t i = 0; i < 5; ++i) EXPECT_THAT(swarm.bodies(i), ElementsAre("other"));
  EXPECT_THAT(seen, ElementsAre("first", "other", "second", ""));
}

// Returns the bytes of a message with a record that a peer of a mesh publishes.
uint64_t message_in_mesh(size_t peers) {
  Gossip swarm(peers);
  for (size_t i = 0; i < peers; ++i) {
    for (size_t j = 0; j < i; ++j) swarm.connect(j, i);
  }
  const auto sent = [&](size_t peer) {
    return swarm.network.traffic(swarm.endpoints[peer]->name()).sent;
  };
  // All tell their groups.
  for (size_t i = 0; i < peers; ++i) {
    swarm.publish(i, "first");
    pass(swarm.network, .1);
  }
  std::vector<uint64_t> before;
  for (size_t i = 0; i < peers; ++i) before.push_back(sent(i));
  swarm.publish(0, "other");
  pass(swarm.network, .1);
  for (size_t i = 1; i < peers; ++i) {
    EXPECT_THAT(swarm.bodies(i), testing::Contains("other"));
    EXPECT_EQ(sent(i), before[i]) << "it has passed the record on";
  }
  return (sent(0) - before[0]) / (peers - 1);
}

TEST(Gossip, MessagesInAMeshAreAsShortInALargeOne) {
  EXPECT_EQ(message_in_mesh(9), message_in_mesh(3));
}

TEST(Gossip, TwoHalvesThatMeetHaveOneSet) {
  Gossip swarm(6);
  for (const auto& [a, b] : {std::pair(0, 1), {1, 2}, {3, 4}, {4, 5}, {2, 3}}) {
    swarm.connect(static_cast<size_t>(a), static_cast<size_t>(b));
  }
  swarm.publish(0, "0");
  pass(swarm.network, .1);
  swarm.cut(2, 3);
  pass(swarm.network, .1);
  swarm.publish(0, "0 again");
  swarm.publish(2, "2");
  swarm.publish(5, "5");
  pass(swarm.network, 1);
  EXPECT_THAT(swarm.bodies(1), ElementsAre("0 again", "2"));
  EXPECT_THAT(swarm.bodies(4), ElementsAre("0", "5"));
  swarm.connect(3, 2);
  pass(swarm.network, .1);
  for (size_t i = 0; i < 6; ++i) EXPECT_THAT(swarm.bodies(i), ElementsAre("0 again", "2", "5"));
}

TEST(Gossip, WithdrawnRecordsStayAwayWhenHalvesMeet) {
  Gossip swarm(2);
  swarm.connect(0, 1);
  swarm.publish(0, "gone soon");
  pass(swarm.network, .1);
  swarm.cut(0, 1);
  pass(swarm.network, .1);
  swarm.publish(0, "", 1s);
  pass(swarm.network, 30);
  swarm.connect(0, 1);
  pass(swarm.network, .1);
  EXPECT_THAT(swarm.bodies(0), IsEmpty());
  EXPECT_THAT(swarm.bodies(1), IsEmpty());
}

TEST(Gossip, RecordsExpireAtAllReaders) {
  Gossip swarm(2, {}, -2s);
  swarm.connect(0, 1);
  swarm.publish(0, "short", 5s);
  pass(swarm.network, 1);
  EXPECT_THAT(swarm.bodies(1), ElementsAre("short"));
  pass(swarm.network, 8);
  EXPECT_THAT(swarm.bodies(0), IsEmpty());
  EXPECT_THAT(swarm.bodies(1), IsEmpty());
}

TEST(Gossip, APeerHasALimitOfRecordsAndOfTheirRate) {
  Gossip swarm(2, {.most_of_peer = 3, .most_per_second = 2});
  swarm.connect(0, 1);
  for (int i = 0; i < 5; ++i) {
    swarm.directories[0]->publish("kind", std::to_string(i), 0, 60s, std::to_string(i));
    pass(swarm.network, 1);
  }
  EXPECT_THAT(swarm.bodies(1), ElementsAre("0", "1", "2"));
  for (int i = 0; i < 100; ++i) {
    swarm.directories[0]->publish("kind", "0", 0, 60s, "many");
    swarm.directories[0]->publish("kind", "0", 0, 60s, "0 " + std::to_string(i));
    pass(swarm.network, .01);
  }
  // Four at once, and then one each half second.
  EXPECT_THAT(swarm.bodies(1), ElementsAre("0 50", "1", "2"));
}

TEST(Gossip, NeighboursThatForgeAreDisconnected) {
  Gossip swarm(3);
  swarm.connect(0, 1);
  swarm.connect(1, 2);
  auto text = SignedRecord(identity_of(0), {.run = "run",
                                            .kind = "kind",
                                            .created = swarm.directories[0]->now(),
                                            .expiry = swarm.directories[0]->now() + 60s,
                                            .body = "a lie"})
                  .text();
  text[0] = text[0] == '0' ? '1' : '0';
  std::string escaped;
  for (const char c : text)
    escaped += (c == '"' || c == '\\') ? std::string("\\") + c : std::string(1, c);
  const auto message = R"({"group":"","records":[")" + escaped + R"("],"sent_to":[]})";
  net::send_owned(*swarm.endpoints[2], swarm.endpoints[1]->name(), kGossip,
                  std::make_shared<const std::string>(message));
  pass(swarm.network, 1);
  EXPECT_EQ(swarm.changes, 2);
  EXPECT_THAT(swarm.bodies(0), IsEmpty());
  swarm.publish(1, "still here");
  pass(swarm.network, 1);
  EXPECT_THAT(swarm.bodies(0), ElementsAre("still here"));
}

TEST(Gossip, RandomMessagesCrashNothing) {
  Gossip swarm(2);
  Random random(1);
  const std::string valid =
      R"({"group":"","records":[""],"sent_to":[],"from":"","to":"g","have":{"0":1}})";
  for (int trial = 0; trial < 300; ++trial) {
    swarm.connect(0, 1);
    auto text = valid;
    for (uint64_t change = random.below(4); change > 0; --change) {
      text[random.below(text.size())] = static_cast<char>(random.below(256));
    }
    net::send_owned(*swarm.endpoints[0], swarm.endpoints[1]->name(), kGossip,
                    std::make_shared<const std::string>(text));
    pass(swarm.network, .01);
  }
  EXPECT_THAT(swarm.bodies(1), IsEmpty());
}

}  // namespace
}  // namespace troika::swarm
