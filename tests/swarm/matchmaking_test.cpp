// Groups that peers of a simulated network form.
#include "troika/swarm/matchmaking.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "tests/swarm/seekers.h"
#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/swarm/grid.h"

namespace troika::swarm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Matchmaking, AllThatAreExpectedBeginAtOnce) {
  Seekers peers(8);
  const auto names = peers.all_names();
  for (size_t i = 0; i < 8; ++i) {
    peers.seek(i, 5 + static_cast<double>(i),
               {.gathered = std::to_string(i), .is_complete = has_all(names)});
    pass(peers.network, .01);
  }
  pass(peers.network, .3);
  for (size_t i = 0; i < 8; ++i) {
    ASSERT_THAT(peers.group_of(i), SizeIs(8)) << i;
    EXPECT_EQ(peers.matches[i]->id, peers.matches[0]->id);
    for (const auto& member : peers.matches[i]->members) {
      EXPECT_EQ(member.gathered, std::to_string(peers.index_of(member.name)));
    }
  }
}

TEST(Matchmaking, AGroupHasItsTargetSize) {
  Seekers peers(8);
  for (size_t i = 0; i < 8; ++i) peers.seek(i, 5, {.target_size = 2});
  pass(peers.network, 3);
  std::map<uint64_t, int> sizes;
  for (size_t i = 0; i < 8; ++i) {
    ASSERT_THAT(peers.group_of(i), SizeIs(2)) << i;
    ++sizes[peers.matches[i]->id];
  }
  EXPECT_THAT(sizes, SizeIs(4));
}

TEST(Matchmaking, ALeaderBeginsAtItsDeadlineWithTheLeastSize) {
  Seekers peers(4);
  for (size_t i = 0; i < 3; ++i) peers.seek(i, 2 + static_cast<double>(i), {.least_size = 3});
  pass(peers.network, 1.9);
  EXPECT_THAT(peers.matches, IsEmpty());
  pass(peers.network, .2);
  for (size_t i = 0; i < 3; ++i) EXPECT_THAT(peers.group_of(i), ElementsAre(0, 1, 2));
  peers.seek(3, 1);
  pass(peers.network, 2);
  ASSERT_TRUE(peers.matches.contains(3));
  EXPECT_THAT(peers.group_of(3), IsEmpty());
}

TEST(Matchmaking, KeysAndFormsAreKeptApart) {
  Seekers peers(6);
  for (size_t i = 0; i < 6; ++i) {
    peers.seek(i, 1, {.key = i < 4 ? "one" : "two", .schema = i % 2 ? "odd" : "even"});
  }
  pass(peers.network, 2);
  EXPECT_THAT(peers.group_of(0), ElementsAre(0, 2));
  EXPECT_THAT(peers.group_of(3), ElementsAre(1, 3));
  EXPECT_THAT(peers.group_of(4), IsEmpty());
  EXPECT_THAT(peers.group_of(5), IsEmpty());
}

TEST(Matchmaking, ClientsDoNotLead) {
  Seekers peers(3);
  peers.seek(0, 1, {.is_client = true});
  peers.seek(1, 2, {.is_client = true});
  pass(peers.network, 3);
  EXPECT_THAT(peers.group_of(0), IsEmpty());
  EXPECT_THAT(peers.group_of(1), IsEmpty());
  peers.seek(0, 3, {.is_client = true});
  peers.seek(1, 1, {.is_client = true});  // before the leader
  peers.seek(2, 2);
  pass(peers.network, 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_THAT(peers.group_of(i), ElementsAre(0, 1, 2));
}

TEST(Matchmaking, TheNextOneLeadsIfTheLeaderIsLost) {
  for (const bool is_silent : {false, true}) {
    Seekers peers(4);
    for (size_t i = 0; i < 4; ++i) peers.seek(i, 2 + 2 * static_cast<double>(i));
    pass(peers.network, 1);
    if (is_silent) {
      peers.network.stop(peers.name(0));
    } else {
      peers.kill(0);
    }
    pass(peers.network, 8);
    for (size_t i = 1; i < 4; ++i) EXPECT_THAT(peers.group_of(i), ElementsAre(1, 2, 3));
  }
}

TEST(Matchmaking, ALostLeaderIsReplacedAtOnce) {
  Seekers peers(4);
  const std::set<std::string> rest{peers.name(1), peers.name(2), peers.name(3)};
  for (size_t i = 0; i < 4; ++i) {
    peers.seek(i, 20 + static_cast<double>(i), {.least_size = 3, .is_complete = has_all(rest)});
    if (i == 0) pass(peers.network, .01);
    if (i == 1) {
      pass(peers.network, .01);
      peers.kill(0);
    }
  }
  pass(peers.network, 1);
  for (size_t i = 1; i < 4; ++i) EXPECT_THAT(peers.group_of(i), ElementsAre(1, 2, 3));
}

TEST(Matchmaking, LedPeersAreHandedToAnEarlierLeader) {
  Seekers peers(4);
  for (size_t i = 1; i < 4; ++i) peers.seek(i, 2 + static_cast<double>(i));
  pass(peers.network, .5);
  peers.seek(0, 1);
  pass(peers.network, 1.2);
  for (size_t i = 0; i < 4; ++i) EXPECT_THAT(peers.group_of(i), ElementsAre(0, 1, 2, 3));
}

TEST(Matchmaking, AStoppedSearchIsInNoGroup) {
  Seekers peers(3);
  for (size_t i = 0; i < 3; ++i) peers.seek(i, 1 + static_cast<double>(i));
  pass(peers.network, .5);
  peers.matchmakings[1]->stop();
  pass(peers.network, 2);
  EXPECT_THAT(peers.group_of(0), ElementsAre(0, 2));
  EXPECT_FALSE(peers.matches.contains(1));
}

// A peer that asks by itself, against the order.
TEST(Matchmaking, RefusalsHaveTypes) {
  Seekers peers(3);
  std::string answer;
  peers.endpoints[2]->handle(kMatchmaking, 1 << 20,
                             [&](const std::string&, std::string text) { answer = text; });
  const auto refusal = [&](size_t peer, const std::string& key, const std::string& schema,
                           int64_t deadline, const std::string& gathered = {}) {
    const auto text = fmt::format(
        R"({{"kind":0,"attempt":1,"key":"{}","schema":"{}","gathered":"{}","is_client":false,"deadline":{},)"
        R"("refusal":0,"suggested":"","id":0,"members":{{}}}})",
        key, schema, gathered, deadline);
    net::send_owned(*peers.endpoints[2], peers.name(peer), kMatchmaking,
                    std::make_shared<const std::string>(text));
    pass(peers.network, .01);
    // Kind 1 accepts, and 2 refuses.
    const auto at = answer.find("\"refusal\":") + 10;
    return answer.find("\"kind\":1") != std::string::npos ? -1 : answer[at] - '0';
  };
  const auto code = [](Refusal refusal) { return static_cast<int>(refusal); };
  EXPECT_EQ(refusal(0, "k", "s", INT64_MAX), code(Refusal::not_seeking));
  peers.seek(0, 5, {.key = "k", .schema = "s", .target_size = 2});
  EXPECT_EQ(refusal(0, "other", "s", INT64_MAX), code(Refusal::bad_group_key));
  EXPECT_EQ(refusal(0, "k", "other", INT64_MAX), code(Refusal::bad_schema));
  EXPECT_EQ(refusal(0, "k", "s", 0), code(Refusal::bad_place));
  peers.seek(1, 6, {.key = "k", .schema = "s", .is_client = true});
  EXPECT_EQ(refusal(1, "k", "s", INT64_MAX), code(Refusal::not_a_leader));
  peers.seek(0, 5, {.key = "k", .schema = "s"});
  EXPECT_EQ(refusal(0, "k", "s", INT64_MAX, std::string(2000, 'x')), 9);
  EXPECT_EQ(refusal(0, "k", "s", INT64_MAX), -1);
  peers.seek(0, 5, {.key = "k", .schema = "s", .target_size = 1});
  EXPECT_EQ(refusal(0, "k", "s", INT64_MAX), code(Refusal::group_is_full));
}

// Random deadlines, beginnings, clients, sizes and losses.
TEST(Matchmaking, EverySearchEndsAndGroupsAreConsistent) {
  size_t grouped = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Seekers peers(7, seed);
    std::set<size_t> lost;
    for (size_t i = 0; i < 7; ++i) {
      peers.seek(i, random.uniform(.1, 3),
                 {.is_client = random.below(4) == 0, .target_size = 2 + random.below(6)});
      pass(peers.network, random.uniform(0, .3));
      if (random.below(10) == 0) {
        lost.insert(i);
        peers.kill(i);
      }
    }
    pass(peers.network, 10);
    for (size_t i = 0; i < 7; ++i) {
      if (lost.contains(i)) continue;
      ASSERT_TRUE(peers.matches.contains(i)) << i;
      const auto group = peers.group_of(i);
      grouped += !group.empty();
      EXPECT_TRUE(group.empty() || std::ranges::count(group, i) == 1);
      for (const size_t other : group) {
        EXPECT_TRUE(lost.contains(other) || peers.group_of(other) == group) << other;
      }
    }
  }
  EXPECT_GT(grouped, 300u);
}

TEST(Matchmaking, RandomMessagesCrashNothing) {
  Random random(1);
  Seekers peers(2);
  const std::string valid =
      R"({"kind":0,"attempt":1,"key":"","schema":"","gathered":"","is_client":false,"deadline":1,"refusal":2,)"
      R"("suggested":"","id":1,"members":{"a":"b"}})";
  peers.seek(1, 3600);
  for (int trial = 0; trial < 300; ++trial) {
    auto text = valid;
    text[8] = static_cast<char>('0' + random.below(6));
    for (uint64_t change = random.below(3); change > 0; --change) {
      text[random.below(text.size())] = static_cast<char>(random.below(256));
    }
    net::send_owned(*peers.endpoints[0], peers.name(1), kMatchmaking,
                    std::make_shared<const std::string>(text));
  }
  pass(peers.network, 1);
  EXPECT_TRUE(peers.matchmakings[1]->is_seeking());
}

// Moshpit: groups of 2 on a grid of 2 x 2 x 2.
TEST(Matchmaking, EightPeersInGroupsOfTwoAgreeAfterThreeRounds) {
  Seekers peers(8);
  std::vector<GridPlace> places;
  std::vector<std::shared_ptr<std::vector<double>>> values;
  for (size_t i = 0; i < 8; ++i) {
    places.emplace_back(2, 3, i);
    values.push_back(std::make_shared<std::vector<double>>(10, std::pow(2, i)));
  }
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < 8; ++i) {
      peers.seek(i, 5, {.key = std::to_string(round) + places[i].key(), .target_size = 2});
    }
    pass(peers.network, 1);
    size_t done = 0;
    for (size_t i = 0; i < 8; ++i) {
      const auto& match = peers.matches.at(i);
      ASSERT_TRUE(match && match->members.size() == 2);
      AveragingGroup group{.id = match->id, .members = {}};
      for (const auto& member : match->members)
        group.members.push_back({member.name, Mode::node, 5});
      peers.averagers[i]->begin<double>(group, values[i], 1, {},
                                        [&](const auto& result) { done += result.is_complete(); });
      places[i].move(match->members[0].name == peers.name(i) ? 0 : 1);
    }
    pass(peers.network, 1);
    EXPECT_EQ(done, 8u);
    double sum = 0;
    for (const auto& vector : values) sum += vector->front();
    EXPECT_EQ(sum, 255);
  }
  for (const auto& vector : values) EXPECT_THAT(*vector, testing::Each(255. / 8));
  EXPECT_THROW(GridPlace(2, 3, 8), Error);
}

}  // namespace
}  // namespace troika::swarm
