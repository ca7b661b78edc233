#include "troika/server/ring_map.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/random.h"

namespace troika::server {
namespace {

using Servers = std::set<std::string>;

RingMap map_of(size_t ranges, const Servers& servers, int replicas) {
  RingMap map;
  map.ranges.resize(ranges);
  assign_ranges(map, servers, replicas);
  map.generation = 1;
  return map;
}

size_t masters(const RingMap& map, const std::string& server) {
  size_t count = 0;
  for (uint32_t i = 0; i < map.ranges.size(); ++i) count += map.master(i) == server;
  return count;
}

// As nodes do: plans, then completes all copies, until nothing changes.
void finish(RingMap& map, const Servers& servers, const Servers& leaving, int replicas) {
  for (int round = 0; round < 1000; ++round) {
    bool changed = plan_ranges(map, servers, leaving, replicas);
    ++map.generation;
    for (uint32_t i = 0; i < map.ranges.size(); ++i) {
      const auto joiners = map.ranges[i].joiners;
      for (const auto& joiner : joiners) {
        complete_copy(map, i, joiner.server, servers, replicas);
        changed = true;
      }
    }
    if (!changed) return;
  }
  FAIL() << "the plan does not come to an end";
}

TEST(ServerMap, HasATextForm) {
  RingMap map = map_of(8, {"s0", "s1"}, 0);
  map.generation = 3;
  map.tables = {{.name = "w", .keys = 10}};
  map.ranges[4].joiners = {{"s0", 3}};
  map.ranges[7] = {.holders = {}, .joiners = {}, .is_lost = true};
  map.workers = {{1, "w0"}};
  map.departed = {{2, -1}};
  const std::string text =
      "generation 3\ntable w float32 keys=10 width=1 initial=0 spread=0 seed=0 per_push sum\n"
      "ranges 0-3 s0\nranges 4-4 s1 +s0@3\nranges 5-6 s1\nranges 7-7 lost\nworker 1 w0\n"
      "departed 2 -1\n";
  EXPECT_EQ(to_text(map), text);
  EXPECT_EQ(parse_map(text), map);
  EXPECT_ERROR(parse_map("generation 3\nranges 1-2 s0\n"), ErrorKind::usage,
               "[server] a line of a map does not parse; got `ranges 1-2 s0`");
  EXPECT_THROW(parse_map("ranges 0-99999999999 s0"), Error);
}

TEST(ServerMap, ANewServerTakesItsShareAndNoMore) {
  auto map = map_of(12, {"a", "b"}, 0);
  EXPECT_EQ(masters(map, "a"), 6u);
  const auto before = map;
  finish(map, {"a", "b", "c"}, {}, 0);
  EXPECT_EQ(masters(map, "a"), 4u);
  EXPECT_EQ(masters(map, "b"), 4u);
  size_t moved = 0;
  for (uint32_t i = 0; i < 12; ++i) moved += map.master(i) != before.master(i);
  EXPECT_EQ(moved, 4u) << "only the ranges of the new server";
}

TEST(ServerMap, ALostServersRangesGoToTheirCopies) {
  auto map = map_of(12, {"a", "b", "c"}, 1);
  plan_ranges(map, {"a", "c"}, {}, 1);
  for (const auto& range : map.ranges) {
    EXPECT_FALSE(range.is_lost);
    EXPECT_EQ(range.holders.size() + range.joiners.size(), 2u);
    EXPECT_NE(range.holders[0], "b");
  }
  auto alone = map_of(4, {"a", "b"}, 0);
  plan_ranges(alone, {"a"}, {}, 0);
  EXPECT_TRUE(alone.ranges[3].is_lost);
  EXPECT_FALSE(alone.ranges[0].is_lost);
}

// If servers join, leave and are lost (at most `replicas` at a time), no values are lost, every
// range has its copies on different servers, and masters are spread evenly.
TEST(ServerMap, RandomChangesLoseNothing) {
  Random random(5);
  for (int trial = 0; trial < 30; ++trial) {
    const int replicas = static_cast<int>(random.below(3));
    Servers servers;
    for (int i = 0; i < 4; ++i) servers.insert("s" + std::to_string(i));
    auto map = map_of(32, servers, replicas);
    for (int change = 0; change < 20; ++change) {
      Servers leaving;
      const auto kind = random.below(3);
      const auto any =
          *std::next(servers.begin(), static_cast<ptrdiff_t>(random.below(servers.size())));
      if (kind == 0 || servers.size() <= 3) servers.insert("n" + std::to_string(change));
      if (kind == 1 && servers.size() > 3) leaving = {any};
      if ((kind == 1 || (kind == 2 && replicas > 0)) && servers.size() > 3) servers.erase(any);
      finish(map, servers, leaving, replicas);
      size_t least = 32, most = 0;
      for (const auto& server : servers) {
        least = std::min(least, masters(map, server));
        most = std::max(most, masters(map, server));
      }
      EXPECT_LE(most, least + 1);
      for (const auto& range : map.ranges) {
        ASSERT_FALSE(range.is_lost);
        EXPECT_EQ(range.holders.size(), static_cast<size_t>(replicas) + 1);
        const Servers holders(range.holders.begin(), range.holders.end());
        EXPECT_EQ(holders.size(), range.holders.size());
        for (const auto& holder : holders) EXPECT_TRUE(servers.contains(holder));
      }
    }
  }
}

}  // namespace
}  // namespace troika::server
