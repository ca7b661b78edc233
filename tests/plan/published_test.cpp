#include "troika/plan/search/published.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/plan/random_chains.h"
#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/plan/search/graph_cuts.h"
#include "troika/plan/search/machine_levels.h"

namespace troika::plan {
namespace {

using layout::Profile;
using testing::ElementsAre;

constexpr double kNone = std::numeric_limits<double>::infinity();

std::vector<int> replicas(const PublishedPlan& plan) {
  std::vector<int> counts;
  for (const auto& stage : plan.stages) counts.push_back(stage.replicas);
  return counts;
}

Profile random_profile(Draws& draws, int blocks, bool is_chain) {
  Profile profile;
  for (int i = 0; i < blocks; ++i) {
    const double bytes = draws.from(0, 9);
    profile.blocks.push_back({.name = std::to_string(i),
                              .forward = draws.from(0, 9) * 1.0,
                              .backward_input = draws.from(0, 9) * 1.0,
                              .output_bytes = bytes,
                              .saved_bytes = bytes,
                              .parameter_bytes = draws.from(0, 9) * 1.0});
    if (is_chain || i == 0) continue;
    const auto to = static_cast<size_t>(i);
    const auto from = static_cast<size_t>(draws.from(0, i - 1));
    profile.edges.emplace_back(from, to);
    if (from + 1 < to) profile.edges.emplace_back(to - 1, to);
  }
  return profile;
}

// The formulas of the released optimizer for one level, computed recursively: the minimum over all
// choices of the last stage.
struct Formulas {
  const std::vector<GraphCut>& cuts;
  const PublishedOptions& options;

  double stage(double seconds, double bytes, int r) const {
    const double exchange = 4.0 * (r - 1) * bytes / (r * options.levels[0].bandwidth);
    return (options.model == PublishedModel::sum ? seconds + exchange
                                                 : std::max(seconds, exchange)) /
           r;
  }
  bool fits(double bytes, int used, int r) const {
    const int after = options.levels[0].machines - used;
    return !options.memory_bytes || (after + r - 1) / r * bytes <= *options.memory_bytes;
  }
  double best(size_t end, int used) const {
    const auto& all = cuts[end];
    double least = kNone;
    if ((used == 1 || !options.straight) &&
        fits(all.activation_bytes + all.parameter_bytes, used, used)) {
      least = stage(all.seconds, all.parameter_bytes, used);
    }
    if (options.fewer_machines && used > 1 && end > 0) least = std::min(least, best(end, used - 1));
    for (size_t split = 0; split < end; ++split) {
      const auto& before = cuts[split];
      if (!all.contains(before)) continue;
      for (int r = 1; r < (options.straight ? std::min(used, 2) : used); ++r) {
        const double parameters = all.parameter_bytes - before.parameter_bytes;
        if (!fits(all.activation_bytes - before.activation_bytes + parameters, used, r)) continue;
        double value =
            std::max(best(split, used - r), stage(all.seconds - before.seconds, parameters, r));
        if (options.compression_ratio) {
          const double rate = options.levels[0].bandwidth * r * *options.compression_ratio;
          value = std::max(value, 2 * before.crossing_bytes / rate);
          if (end + 1 < cuts.size()) value = std::max(value, 2 * all.crossing_bytes / rate);
        }
        least = std::min(least, value);
      }
    }
    return least;
  }
};

// Returns the time of a plan by its stages, if transfers take no time.
double time_of(const Profile& profile, const PublishedPlan& plan, const Formulas& formulas) {
  double slowest = 0;
  for (const auto& stage : plan.stages) {
    double seconds = 0, bytes = 0;
    for (const size_t block : stage.blocks) {
      seconds += profile.blocks[block].seconds();
      bytes += profile.blocks[block].parameter_bytes;
    }
    slowest = std::max(slowest, formulas.stage(seconds, bytes, stage.replicas));
  }
  return slowest;
}

TEST(Published, IsTheLeastOfAllPlansOfRandomGraphs) {
  Draws draws(1);
  int infeasible = 0;
  for (int round = 0; round < 600; ++round) {
    const auto profile = random_profile(draws, draws.from(1, 6), draws.from(0, 1) == 0);
    PublishedOptions options{
        .model = draws.from(0, 1) == 0 ? PublishedModel::sum : PublishedModel::max,
        .levels = {{.machines = draws.from(1, 4), .bandwidth = draws.from(1, 20) * 1.0}},
        .straight = draws.from(0, 3) == 0,
        .fewer_machines = draws.from(0, 2) == 0};
    if (draws.from(0, 1) == 0) options.memory_bytes = draws.from(0, 40);
    if (draws.from(0, 2) == 0) options.compression_ratio = draws.from(1, 3);
    const auto plan = plan_published(profile, options);
    const auto cuts = find_cuts(profile, 1000, 1000);
    const Formulas formulas{cuts.cuts, options};
    const double expected = formulas.best(cuts.cuts.size() - 1, options.levels[0].machines);
    ASSERT_EQ(plan.feasible, expected < kNone) << round;
    if (!plan.feasible) {
      ++infeasible;
      if (!plan.least_memory_bytes) continue;
      // The nearest limit is feasible, and no lower one is.
      options.memory_bytes = plan.least_memory_bytes;
      ASSERT_TRUE(plan_published(profile, options).feasible) << round;
      options.memory_bytes = *plan.least_memory_bytes * (1 - 1e-9);
      ASSERT_FALSE(plan_published(profile, options).feasible) << round;
      continue;
    }
    ASSERT_NEAR(plan.seconds_per_minibatch, expected, 1e-9 * expected) << round;
    if (!options.compression_ratio) {
      ASSERT_NEAR(time_of(profile, plan, formulas), expected, 1e-9 * expected) << round;
    }
    size_t blocks = 0;
    for (const auto& stage : plan.stages) blocks += stage.blocks.size();
    ASSERT_EQ(blocks, profile.blocks.size()) << round;
    const auto counts = replicas(plan);
    const int used = std::accumulate(counts.begin(), counts.end(), 0);
    ASSERT_TRUE(used == options.levels[0].machines ||
                (options.fewer_machines && used < options.levels[0].machines))
        << round;
  }
  EXPECT_GT(infeasible, 20);
}

Profile chain(std::initializer_list<std::pair<double, double>> seconds_and_parameters) {
  Profile profile;
  for (const auto& [seconds, bytes] : seconds_and_parameters) {
    profile.blocks.push_back({.name = std::to_string(profile.blocks.size()),
                              .forward = seconds,
                              .output_bytes = 1,
                              .saved_bytes = 1,
                              .parameter_bytes = bytes});
  }
  return profile;
}

TEST(Published, PlansLevelsFromTheInnermost) {
  // Two servers of two machines. The large layer is best on a server of its own, as two stages
  // would need half of it each.
  const auto profile = chain({{8, 0}, {8, 0}, {8, 100}, {8, 0}});
  const PublishedOptions options{.levels = {{2, 10}, {2, 1}}};
  const auto plan = plan_published(profile, options);
  // The first server replicates two layers without parameters, the second one has a stage each.
  EXPECT_DOUBLE_EQ(plan.seconds_per_minibatch, 8);
  EXPECT_THAT(replicas(plan), ElementsAre(2, 1, 1));
  // (32 + 4 * 100 / (2 * 10)) / 2, then (26 + 4 * 100 / (2 * 1) / 2) / 2.
  EXPECT_DOUBLE_EQ(plan.data_parallel_seconds, 63);
  EXPECT_TRUE(plan.is_optimal);
}

TEST(Published, TakesTheFewestStagesOfEqualPlans) {
  const auto profile = chain({{1, 0}, {1, 0}, {1, 0}, {1, 0}});
  EXPECT_THAT(replicas(plan_published(profile, {.levels = {{4, 1}}})), ElementsAre(4));
  EXPECT_THAT(replicas(plan_published(profile, {.levels = {{4, 1}}, .straight = true})),
              ElementsAre(1, 1, 1, 1));
  const auto too_long = plan_published(profile, {.levels = {{5, 1}}, .straight = true});
  EXPECT_FALSE(too_long.feasible);
  EXPECT_FALSE(too_long.least_memory_bytes.has_value());
}

TEST(Published, LeavesOutInputsAndUnusedItems) {
  auto profile = chain({{100, 0}, {1, 1}, {1, 1}, {50, 50}});
  profile.blocks[0].layer = "Input0";
  profile.blocks[3].layer = "__getitem__(1)";
  const auto plan = plan_published(profile, {.levels = {{1, 1}}});
  EXPECT_DOUBLE_EQ(plan.seconds_per_minibatch, 2);
  ASSERT_EQ(plan.stages.size(), 1);
  EXPECT_THAT(plan.stages[0].blocks, ElementsAre(0, 1, 2));
}

TEST(Published, CountsWhatEachCutLeavesUnread) {
  // 0 feeds 1 and 2, which both feed 3.
  auto profile = chain({{1, 1}, {1, 1}, {1, 1}, {1, 1}});
  for (size_t i = 0; i < 4; ++i) profile.blocks[i].output_bytes = std::pow(10.0, i);
  profile.edges = {{0, 1}, {0, 2}, {1, 3}, {2, 3}};
  std::vector<double> crossing;
  for (const auto& cut : find_cuts(profile, 10, 10).cuts) crossing.push_back(cut.crossing_bytes);
  // The output of block 0 counts in addition to those of both readers, as in the released
  // optimizer.
  EXPECT_THAT(crossing,
              ElementsAre(1, testing::AnyOf(11, 101), testing::AnyOf(11, 101), 111, 1000));
}

TEST(Published, SaysWhatItHasNotSeen) {
  // 12 branches of 3 blocks have 4^12 cuts between them.
  Profile profile = chain({{1, 1}});
  for (size_t branch = 0; branch < 12; ++branch) {
    for (size_t i = 0; i < 3; ++i) {
      const size_t block = profile.blocks.size();
      profile.blocks.push_back({.name = std::to_string(block), .forward = 1, .parameter_bytes = 1});
      profile.edges.emplace_back(i == 0 ? 0 : block - 1, block);
    }
  }
  const auto plan = plan_published(profile, {.levels = {{5, 0.5}}});
  EXPECT_FALSE(plan.is_optimal);
  EXPECT_DOUBLE_EQ(plan.lower_bound, 37.0 / 5);
  EXPECT_LE(plan.seconds_per_minibatch, 10);
  EXPECT_EQ(plan.seconds_per_minibatch,
            plan_published(profile, {.levels = {{5, 0.5}}}).seconds_per_minibatch);
}

TEST(Published, RefusesNumbersThatMeanNothing) {
  const auto profile = chain({{1, 1}});
  EXPECT_ERROR(plan_published(profile, {}), ErrorKind::usage,
               "[plan] levels of machines; got none, expected at least one");
  EXPECT_ERROR(plan_published(profile, {.levels = {{0, 1}}}), ErrorKind::usage,
               "[plan] machines of a level; got 0, expected from 1 to 4096");
  EXPECT_ERROR(plan_published(profile, {.levels = {{2, -1}}}), ErrorKind::usage,
               "[plan] bandwidth of a level; got -1, expected a number of bytes per second > 0");
  auto parts = chain({{1, 1}, {1, 1}, {1, 1}});
  parts.edges = {{0, 2}};
  EXPECT_ERROR(plan_published(parts, {.levels = {{2, 1}}}), ErrorKind::usage,
               fmt::format("[plan] a profile whose blocks are not connected; got no edge between "
                           "the blocks of {} and {}, expected edges that connect all blocks",
                           parts.blocks[0].name, parts.blocks[1].name));
  auto input = profile;
  input.blocks[0].layer = "Input";
  EXPECT_ERROR(plan_published(input, {.levels = {{1, 1}}}), ErrorKind::usage,
               "[plan] a profile; got input layers alone, expected a model's blocks");
}

TEST(MachineLevels, AreThoseOfAUniformCluster) {
  auto cluster = layout::Cluster::uniform(4, 8);
  cluster.network.bandwidth = 1;
  cluster.group.bandwidth = 10;
  const auto levels = machine_levels(cluster, "c.toml");
  ASSERT_EQ(levels.size(), 2);
  EXPECT_EQ(levels[0].machines, 8);
  EXPECT_EQ(levels[0].bandwidth, 10);
  EXPECT_EQ(levels[1].machines, 4);
  cluster.network.bandwidth = 0;
  EXPECT_THROW(machine_levels(cluster, "c.toml"), Error);
  cluster.network.bandwidth = 1;
  cluster.devices[2].count = 7;
  EXPECT_ERROR(machine_levels(cluster, "c.toml"), ErrorKind::usage,
               "[plan] devices of a group of c.toml; got 8 and 7, expected equally many of each "
               "(or a plan by --machines)");
}

#ifdef TROIKA_PIPEDREAM_PROFILES

PublishedPlan plan_of(const std::string& model, const PublishedOptions& options) {
  const auto file = std::filesystem::path(TROIKA_PIPEDREAM_PROFILES) / model / "graph.txt";
  return plan_published(Profile::parse(read_file(file), file.string()), options);
}

TEST(PublishedProfiles, GiveThePublishedPlans) {
  const PublishedOptions flat{.levels = {{16, 1.25e9}}};
  auto overlapped = flat;
  overlapped.model = PublishedModel::max;
  EXPECT_THAT(replicas(plan_of("vgg16", overlapped)), ElementsAre(15, 1));
  EXPECT_THAT(replicas(plan_of("resnet50", overlapped)), ElementsAre(16));
  auto with_transfers = flat;
  with_transfers.compression_ratio = 1;
  EXPECT_THAT(replicas(plan_of("vgg16", with_transfers)), ElementsAre(13, 2, 1));
  EXPECT_NEAR(plan_of("alexnet", with_transfers).seconds_per_minibatch, 0.0150994944, 1e-11);
}

TEST(PublishedProfiles, HaveThePublishedCuts) {
  const PublishedOptions one{.levels = {{1, 1}}};
  const std::pair<const char*, size_t> cuts[]{
      {"alexnet", 22},      {"vgg16", 40},      {"resnet18", 100},
      {"resnet50", 240},    {"resnet101", 410}, {"squeezenet1_0", 99},
      {"densenet121", 430}, {"gnmt", 99},       {"gnmt_large", 1495}};
  for (const auto& [model, count] : cuts) {
    const auto plan = plan_of(model, one);
    EXPECT_EQ(plan.cuts, count) << model;
    EXPECT_TRUE(plan.is_optimal) << model;
  }
  EXPECT_FALSE(plan_of("inception_v3", {.levels = {{16, 1.25e9}}}).is_optimal);
}

#endif

}  // namespace
}  // namespace troika::plan
