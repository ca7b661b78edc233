// The groups of a step: alone, and with peers that average in them.
#include "troika/swarm/step_groups.h"

#include <gmock/gmock.h>

#include <map>

#include "tests/support/errors.h"
#include "tests/swarm/coarse_packing.h"
#include "tests/swarm/trainers.h"

namespace troika::swarm {
namespace {

TEST(StepGroups, TheSideOfTheGridFollowsTheSizeOfTheSwarm) {
  EXPECT_EQ(grid_side(1000, 0), 1u);
  EXPECT_EQ(grid_side(64, 64), 1u);
  EXPECT_EQ(grid_side(65, 64), 2u);
  EXPECT_EQ(grid_side(1000, 64), 16u);
  EXPECT_EQ(grid_side(10'000, 256), 32u);
  // Rows of fewer peers would not reach all columns.
  EXPECT_EQ(grid_side(8, 4), 1u);
  EXPECT_EQ(grid_side(12, 4), 2u);
}

struct GridOfPeers {
  std::vector<StepGroups> groups;
  std::map<std::string, Match> rows, columns;  // by key

  explicit GridOfPeers(size_t peers, size_t side) {
    for (size_t i = 0; i < peers; ++i) {
      groups.emplace_back("3 history", side, identity_of(i).name());
      auto& row = rows[groups[i].key()];
      row.members.push_back({identity_of(i).name(), std::to_string(i)});
    }
    uint64_t id = 0;
    for (auto& [key, row] : rows) {
      row.id = ++id;
      std::ranges::sort(row.members, {}, &GroupMember::name);
      for (const auto& member : row.members) {
        // Each peer has one sample.
        const AveragingResult result{.weight = static_cast<double>(row.members.size())};
        groups[std::stoul(member.gathered)].end_row(row, result, true);
      }
    }
    for (const auto& one : groups) columns[one.key()];
    for (size_t i = 0; i < peers; ++i) {
      columns[groups[i].key()].members.push_back(
          {identity_of(i).name(), Gathered{Mode::node, 0, 10, groups[i].part()}.text()});
    }
    for (auto& [key, column] : columns) {
      column.id = ++id;
      std::ranges::sort(column.members, {}, &GroupMember::name);
    }
  }
};

TEST(StepGroups, EachColumnHasTheAverageOfEachRowOnce) {
  GridOfPeers grid(100, 4);
  ASSERT_EQ(grid.rows.size(), 4u);
  ASSERT_EQ(grid.columns.size(), 4u);
  std::set<std::string> names;
  for (const auto& [key, column] : grid.columns) {
    EXPECT_GE(column.members.size(), 21u);
    EXPECT_LE(column.members.size(), 29u);
    const auto sources = sources_of(column);
    EXPECT_EQ(sources.names.size(), 4u);
    EXPECT_EQ(sources.weight, 100);
    names.insert(name_of_column(column, {.weight = 100}));
    EXPECT_TRUE(grid.groups[0].is_complete(column.members));
    auto fewer = column.members;
    fewer.pop_back();
    EXPECT_FALSE(grid.groups[0].is_complete(fewer));
    // In the order of rows, which all columns have.
    std::string rows;
    for (const auto& member : group_of(column, 10, 1, 1).members) {
      if (sources.names.contains(member.name)) {
        const auto& gathered = *std::ranges::find(column.members, member.name, &GroupMember::name);
        rows += gathered_from(gathered.gathered).row.average + ' ';
      }
    }
    EXPECT_EQ(rows, sources.rows);
  }
  EXPECT_EQ(names.size(), 1u);
}

TEST(StepGroups, AColumnThatLostARowIsToldApart) {
  GridOfPeers grid(100, 4);
  const auto& column = grid.columns.begin()->second;
  const auto whole = name_of_column(column, {.weight = 100});
  // Its contributor was lost in the middle.
  EXPECT_NE(name_of_column(column, {.weight = 75}), whole);
  // It was not there.
  auto fewer = column;
  const auto sources = sources_of(column);
  std::erase_if(fewer.members,
                [&](const auto& member) { return gathered_from(member.gathered).row.row == 2; });
  EXPECT_NE(name_of_column(fewer, {.weight = sources_of(fewer).weight}), whole);
}

TEST(StepGroups, RowsThatAreNotWholeContributeNothing) {
  const auto own = identity_of(0).name();
  const Match row{.id = 1, .members = {{own, {}}}};
  StepGroups groups("0 history", 2, own);
  const AveragingResult partial{.parts = {{.reducer = own, .first = 0, .count = 2, .averaged = 1}},
                                .weight = 3};
  groups.end_row(row, partial, true);
  EXPECT_TRUE(groups.is_column());
  EXPECT_EQ(groups.part().average, "");
  EXPECT_EQ(groups.part().weight, 0);
}

// The mean of all contributions, to 1e-12, on all peers, although no group has all of them.
TEST(PeersInGroups, AllHaveTheBitsOfTheBigBatch) {
  Trainers run(21, 64);
  const size_t count = 16;
  for (size_t i = 0; i < count; ++i) run.add(4, {.group_size = 8});
  int in_groups = 0, whole = 0, all = 0;
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>& values) {
    ++all;
    whole += step.averaging.is_complete();
    if (step.members.size() == count) return;
    ++in_groups;
    double sum = 0;
    std::vector<double> weights(count);
    for (size_t i = 0; i < count; ++i) {
      const auto& given = run.contributed[{step.epoch, i}];
      if (!given.empty()) sum += weights[i] = *given.begin();
    }
    EXPECT_EQ(step.averaging.weight, sum);
    for (size_t k = 0; k < kPlaces; ++k) {
      ASSERT_NEAR(values[k], k < count ? weights[k] / sum : 0, 1e-12) << step.epoch;
    }
  };
  pass(run.network, 15);
  EXPECT_GT(in_groups, 16 * 5);
  EXPECT_EQ(whole, all);
  for (const auto& trainer : run.all) {
    EXPECT_EQ(trainer->loads, 0);
    if (trainer->steps != run.all[0]->steps) continue;
    EXPECT_EQ(trainer->weights, run.all[0]->weights);
    EXPECT_EQ(trainer->peer->history(), run.all[0]->peer->history());
  }
}

// Rows and columns cut the numbers at different places, and have other contributors.
TEST(PeersInGroups, AllHaveTheSameBitsWithAPacking) {
  Trainers run(24, 64);
  const size_t count = 16;
  const auto gradient = [](size_t peer, size_t k) {
    return std::sin(static_cast<double>((peer + 1) * k));
  };
  run.lies = [&](size_t peer, std::vector<double>& values) {
    for (size_t k = 0; k < values.size(); ++k) values[k] = gradient(peer, k);
  };
  for (size_t i = 0; i < count; ++i) {
    // Unequal links, so that parts are unequal, too.
    run.add(4, {.packing = coarse_packing(48),
                .packing_name = "coarse",
                .group_size = 8,
                .bandwidth = 1e6 * static_cast<double>(1 + i % 3)});
  }
  int in_groups = 0;
  run.checked = [&](size_t, const SwarmStep& step, const std::vector<double>& values) {
    if (step.members.size() == count) return;
    ++in_groups;
    double sum = 0;
    std::vector<double> mean(kNumbers);
    for (size_t i = 0; i < count; ++i) {
      const auto& given = run.contributed[{step.epoch, i}];
      if (given.empty()) continue;
      sum += *given.begin();
      for (size_t k = 0; k < kNumbers; ++k) mean[k] += *given.begin() * gradient(i, k);
    }
    // Contributions and averages of rows, and of columns.
    for (size_t k = 0; k < kNumbers; ++k) ASSERT_NEAR(values[k], mean[k] / sum, 4.1 * kCoarseness);
  };
  pass(run.network, 8);
  EXPECT_GT(in_groups, 16 * 2);
  for (const auto& trainer : run.all) {
    EXPECT_EQ(trainer->loads, 0);
    if (trainer->steps != run.all[0]->steps) continue;
    EXPECT_EQ(trainer->weights, run.all[0]->weights);
  }
}

TEST(PeersInGroups, ComeToOneStateAgainAfterLosses) {
  Trainers run(22, 64);
  for (size_t i = 0; i < 16; ++i) run.add(4, {.group_size = 8});
  pass(run.network, 5);
  for (size_t i = 0; i < 3; ++i) {
    if (i % 2 == 0) {
      run.kill(5 * i);
    } else {
      run.stop(5 * i);
    }
    run.add(4, {.group_size = 8});
    pass(run.network, 4);
  }
  const auto before = run.all[1]->peer->epoch();
  pass(run.network, 15);
  const auto& first = *run.all[1];
  EXPECT_GT(first.peer->epoch(), before + 3);
  for (const size_t i : run.live()) {
    const auto& peer = *run.all[i];
    EXPECT_LE(std::abs(peer.peer->epoch() - first.peer->epoch()), 1) << i;
    if (peer.peer->epoch() != first.peer->epoch()) continue;
    EXPECT_EQ(peer.weights, first.weights) << i;
  }
}

TEST(PeersInGroups, RefuseCentredClipping) {
  Trainers run(23);
  EXPECT_ERROR(run.add(1, {.aggregation = Aggregation::centred_clip, .group_size = 8}),
               ErrorKind::usage,
               "[swarm] groups that are parts of a swarm; got centred clipping, expected a mean: "
               "rows of a grid differ in weight");
}

}  // namespace
}  // namespace troika::swarm
