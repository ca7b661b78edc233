#include "troika/observe/metric_log.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"

namespace troika::observe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using Phase = MetricLog::Phase;

MetricLog alone(Phase phase = Phase::training) {
  return {comm::local::alone(), phase};
}

TEST(MetricLog, StagesHaveTheirDefaults) {
  MetricLog training = alone(), evaluation = alone(Phase::evaluation);
  for (MetricLog* log : {&training, &evaluation}) log->log("loss", 2);
  EXPECT_THAT(training.end_interval().values, ElementsAre(Pair("loss", 2)));
  EXPECT_THAT(training.end_epoch().values, IsEmpty());
  EXPECT_THAT(evaluation.end_interval().values, IsEmpty());
  EXPECT_THAT(evaluation.end_epoch().values, ElementsAre(Pair("loss", 2)));
}

TEST(MetricLog, MeansAreOverSamplesAndStepsBothWays) {
  MetricLog log = alone();
  const LogOptions both{.on_step = true, .on_epoch = true, .prog_bar = true};
  log.start_batch(1);
  log.log("loss", 1, both);
  log.start_batch(3);
  log.log("loss", torch::tensor({5.0f}).requires_grad_(), both);
  log.log("lr", 0.5, {.batch_size = 100});
  const LoggedRow first = log.end_interval();
  EXPECT_THAT(first.values, ElementsAre(Pair("loss_step", 4), Pair("lr", 0.5)));
  EXPECT_THAT(first.prog_bar, ElementsAre(Pair("loss_step", 4)));
  EXPECT_THAT(log.end_interval().values, IsEmpty()) << "nothing was logged since";
  log.log("loss", 9, {.on_step = true, .on_epoch = true, .prog_bar = true, .batch_size = 4});
  EXPECT_THAT(log.end_interval().values, ElementsAre(Pair("loss_step", 9)));
  EXPECT_THAT(log.end_epoch().values, ElementsAre(Pair("loss_epoch", 52.0 / 8)));
  EXPECT_THAT(log.end_epoch().values, IsEmpty());
}

TEST(MetricLog, OtherReductions) {
  MetricLog log = alone();
  const at::Tensor value = torch::tensor(-3.0, at::kDouble);
  log.start_batch(10);
  const auto all = [&](const auto& number) {
    log.log("sum", number, {.reduce = LogReduction::sum});
    log.log("min", number, {.reduce = LogReduction::min});
    log.log("max", number, {.reduce = LogReduction::max});
  };
  all(value);
  value.fill_(100);  // the caller's own
  all(-5.0);
  EXPECT_THAT(log.end_interval().values,
              ElementsAre(Pair("sum", -8), Pair("min", -5), Pair("max", -3)));
  all(1.0);
  all(std::nan(""));
  for (const auto& [name, number] : log.end_interval().values) {
    EXPECT_TRUE(std::isnan(number)) << name;
  }
}

// After a resume in the middle of a row, earlier values are in the same row.
TEST(MetricLog, GoesOnFromItsState) {
  const auto first = [](MetricLog& log) {
    log.log("loss", 1.0 / 3, {.on_epoch = true, .sync_dist = true, .batch_size = 3});
    log.log("least", -NAN, {.reduce = LogReduction::min, .prog_bar = true});
  };
  const auto second = [](MetricLog& log) {
    log.log("loss", 0.1, {.on_epoch = true, .sync_dist = true, .batch_size = 7});
    log.log("greatest", -1, {.reduce = LogReduction::max});
  };
  MetricLog whole = alone(), part = alone(), resumed = alone();
  first(whole);
  second(whole);
  first(part);
  resumed.add_state(part.state());
  second(resumed);
  EXPECT_TRUE(resumed.state().equal(whole.state()));
  EXPECT_THAT(resumed.end_epoch().values, ElementsAre(Pair("loss_epoch", testing::DoubleEq(0.17))));
  const LoggedRow row = resumed.end_interval();
  ASSERT_EQ(row.values.size(), 3u);
  EXPECT_THAT(row.prog_bar, ElementsAre(Pair("least", testing::IsNan())));
  EXPECT_EQ(row.values[2], std::pair(std::string("greatest"), -1.0));
}

// Rank r has r batches, of sizes and values that differ; rank 0 has none.
TEST(MetricLog, RanksTogetherAreOneProcess) {
  const auto value = [](int rank, int batch) { return std::sin(rank * 10 + batch); };
  for (const int ranks : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(ranks);
    double sum = 0, weights = 0, least = INFINITY, greatest = -INFINITY, total = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int batch = 0; batch < rank; ++batch) {
        sum += value(rank, batch) * (batch + 1);
        weights += batch + 1;
        total += value(rank, batch);
        least = std::min(least, value(rank, batch));
        greatest = std::max(greatest, value(rank, batch));
      }
    }
    std::vector<MetricValues> rows(static_cast<size_t>(ranks));
    comm::local::run(ranks, [&](const comm::Group& group) {
      MetricLog log(group, Phase::evaluation);
      for (int batch = 0; batch < group.rank(); ++batch) {
        const double number = value(group.rank(), batch);
        log.start_batch(batch + 1);
        log.log("mean", number, {.sync_dist = true});
        log.log("sum", number, {.reduce = LogReduction::sum, .sync_dist = true});
        log.log("min", number, {.reduce = LogReduction::min, .sync_dist = true});
        log.log("max", number, {.reduce = LogReduction::max, .sync_dist = true, .prog_bar = true});
      }
      const LoggedRow row = log.end_epoch();
      EXPECT_EQ(row.prog_bar.size(), ranks == 1 ? 0u : 1u);
      rows[static_cast<size_t>(group.rank())] = row.values;
    });
    for (const auto& row : rows) EXPECT_EQ(row, rows[0]) << "the same bits";
    if (ranks == 1) {
      EXPECT_THAT(rows[0], IsEmpty());
      continue;
    }
    EXPECT_THAT(rows[0], ElementsAre(Pair("mean", testing::DoubleNear(sum / weights, 1e-14)),
                                     Pair("sum", testing::DoubleNear(total, 1e-14)),
                                     Pair("min", least), Pair("max", greatest)));
  }
}

TEST(MetricLog, WithoutSyncEachRankHasItsOwn) {
  comm::local::run(3, [](const comm::Group& group) {
    const double rank = group.rank();
    MetricLog log(group, Phase::training);
    log.log("own", rank);
    log.log("first", rank, {.rank_zero_only = true});
    log.log("all", rank, {.sync_dist = true});
    if (group.rank() == 2) log.log("of 2 alone", 1);
    const MetricValues values = log.end_interval().values;
    if (group.rank() == 0) {
      EXPECT_THAT(values, ElementsAre(Pair("own", 0), Pair("first", 0), Pair("all", 1)));
    } else if (group.rank() == 1) {
      EXPECT_THAT(values, ElementsAre(Pair("own", 1), Pair("all", 1)));
    } else {
      EXPECT_THAT(values, ElementsAre(Pair("own", 2), Pair("all", 1), Pair("of 2 alone", 1)));
    }
  });
}

TEST(MetricLog, RanksThatLogDifferentNamesSaySo) {
  comm::local::run(3, [](const comm::Group& group) {
    MetricLog log(group, Phase::training);
    log.log("loss", 1, {.sync_dist = true});
    if (group.rank() != 1) log.log("accuracy", 1, {.sync_dist = true});
    if (group.rank() == 1) log.log("acuracy", 1, {.sync_dist = true});
    EXPECT_ERROR(
        log.end_interval(), ErrorKind::usage,
        "[observe] ranks 0 and 1 log different names with sync_dist; got `accuracy` on rank "
        "0 alone and `acuracy` on rank 1 alone, expected the same names on every rank that "
        "logs (log on all ranks, or without sync_dist)");
    // A rank that logs other values, but not this one.
    log.log("loss", 1, {.sync_dist = true});
    EXPECT_EQ(log.end_interval().values.size(), 1u) << "the group still works";
    if (group.rank() == 2) {
      log.log("own", 1);
    } else {
      log.log("loss", 1, {.sync_dist = true});
    }
    EXPECT_ERROR(log.end_interval(), ErrorKind::usage,
                 "[observe] ranks 0 and 2 log different names with sync_dist; got `loss` on rank 0 "
                 "alone, expected the same names on every rank that logs (log on all ranks, or "
                 "without sync_dist)");
    log.log(
        "x", 1,
        {.reduce = group.rank() == 0 ? LogReduction::min : LogReduction::max, .sync_dist = true});
    EXPECT_ERROR(
        log.end_interval(), ErrorKind::usage,
        "[observe] cannot log `x`; got different options on ranks 0 and 1, expected the same "
        "on all ranks");
  });
}

TEST(MetricLog, RefusesWhatContradictsItself) {
  MetricLog log = alone();
  EXPECT_ERROR(
      log.log("a", 1, {.sync_dist = true, .rank_zero_only = true}), ErrorKind::usage,
      "[observe] cannot log `a`; got rank_zero_only and sync_dist, expected at most one of "
      "them (rank 0 would wait for ranks that never join)");
  EXPECT_ERROR(
      log.log("a", 1, {.on_step = false}), ErrorKind::usage,
      "[observe] cannot log `a`; got neither on_step nor on_epoch, expected at least one of "
      "them");
  EXPECT_ERROR(log.log("a", 1, {.batch_size = 0}), ErrorKind::usage,
               "[observe] cannot log `a`; got batch_size 0, expected at least 1");
  EXPECT_ERROR(log.log("a", at::zeros({2})), ErrorKind::usage,
               "[observe] cannot log `a`; got a tensor of 2 elements, expected one element");
  EXPECT_ERROR(
      log.log("a\tb", 1), ErrorKind::usage,
      "[observe] cannot log `a\tb`; got this name, expected one without control characters "
      "that is not empty");
  log.log("a", 1, {.batch_size = 3});
  log.log("a", 1);
  EXPECT_ERROR(log.log("a", 1, {.on_epoch = true, .reduce = LogReduction::max}), ErrorKind::usage,
               "[observe] cannot log `a`; got reduce max, on_step, on_epoch, expected reduce mean, "
               "on_step, as before");
}

}  // namespace
}  // namespace troika::observe
