// Times and memory of the published schedules against their formulas.
#include "troika/plan/simulator.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/plan/paper_rows.h"
#include "tests/support/errors.h"
#include "troika/layout/schedules/table.h"

namespace troika::plan {
namespace {

using layout::PipelineShape;
using layout::Schedule;
using layout::StageTimes;

constexpr double kExact = 1e-9;  // relative: sums are rounded

Simulation simulated(std::string_view name, const PipelineShape& shape, const StageTimes& times) {
  const auto schedule = layout::make_schedule(name, shape);
  return simulate(schedule, stage_times(schedule, {times}));
}

double longest_span(const Simulation& simulation) {
  return simulation.spans[simulation.longest];
}

// Calls check(p, m) for p from 2 to 16 and m from `least(p)` to 4p.
template <typename Least, typename Check>
void for_shapes(const Least& least, const Check& check) {
  for (int p = 2; p <= 16; ++p) {
    for (int m = least(p); m <= 4 * p; ++m) {
      SCOPED_TRACE(testing::Message() << "p " << p << ", m " << m);
      check(p, m);
      if (testing::Test::HasFailure()) return;
    }
  }
}

int from_p(int p) {
  return p;
}
int from_2p(int p) {
  return 2 * p;
}

void expect_times(const Simulation& simulation, double makespan, double span, double work) {
  EXPECT_NEAR(simulation.makespan, makespan, makespan * kExact);
  EXPECT_NEAR(longest_span(simulation), span, span * kExact);
  EXPECT_NEAR(simulation.bubble_rate, (span - work) / span, kExact);
}

std::vector<int> all(int ranks, int peak) {
  return std::vector<int>(static_cast<size_t>(ranks), peak);
}

const std::vector<StageTimes> kTimes{{3, 4, 2, 0}, {2, 1, 3, 0}};

TEST(Formulas, OneStageARank) {
  for (const auto& t : kTimes) {
    const double whole = t.forward + t.backward();
    for_shapes(from_p, [&](int p, int m) {
      const double work = m * whole, flushed = (m + p - 1) * whole;
      expect_times(simulated("naive", {p, m}, t), work * p, work * p, work);
      const auto gpipe = simulated("gpipe", {p, m}, t);
      expect_times(gpipe, flushed, flushed, work);
      EXPECT_EQ(gpipe.peak_activations, all(p, m));
      const auto one = simulated("1f1b", {p, m}, t);
      expect_times(one, flushed, flushed, work);
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(one.peak_activations[static_cast<size_t>(r)], std::min(m, p - r));
      }
    });
  }
  EXPECT_EQ(simulated("naive", {4, 5}, {}).peak_activations, all(4, 1));
}

TEST(Formulas, SeveralStagesARank) {
  for (const auto& t : kTimes) {
    const double whole = t.forward + t.backward();
    for (const int v : {2, 3}) {
      for_shapes(from_p, [&](int p, int m) {
        const double span = m * whole + (p - 1) * whole / v;
        const auto bfs = simulated("bfs", {p, m, v}, t);
        expect_times(bfs, span, span, m * whole);
        EXPECT_EQ(bfs.peak_activations, all(p, m * v));
        if (m % p != 0) return;
        const auto interleaved = simulated("interleaved", {p, m, v}, t);
        expect_times(interleaved, span, span, m * whole);
        for (int r = 0; m >= 2 * p && r < p; ++r) {
          EXPECT_EQ(interleaved.peak_activations[static_cast<size_t>(r)],
                    (v - 1) * p + 2 * (p - 1 - r) + 1);
        }
      });
    }
  }
}

TEST(Formulas, SplitBackwardPasses) {
  for (const auto& t : std::vector<StageTimes>{{1, 1, 1, 0}, {3, 4, 2, 0}}) {
    const double whole = t.forward + t.backward();
    for_shapes(from_p, [&](int p, int m) {
      const auto h1 = simulated("zb-h1", {p, m}, t);
      const double span = m * whole + (p - 1) * (t.forward + t.backward_input - t.backward_weight);
      expect_times(h1, span, span, m * whole);
      EXPECT_EQ(h1.peak_activations, all(p, p));
    });
    for_shapes([](int p) { return 2 * p - 1; },
               [&](int p, int m) {
                 const auto h2 = simulated("zb-h2", {p, m}, t);
                 const double idle =
                     (p - 1) * (t.forward + t.backward_input - 2 * t.backward_weight);
                 EXPECT_NEAR(longest_span(h2), m * whole + idle, kExact * m * whole);
                 if (idle == 0) {
                   EXPECT_NEAR(h2.makespan, m * whole + (p - 1) * t.forward, kExact * m * whole);
                 }
                 EXPECT_EQ(h2.peak_activations, all(p, 2 * p - 1));
               });
  }
}

// Each pass of a half-stage takes 1.
TEST(Formulas, TwoStagesARankInAV) {
  const StageTimes t{2, 2, 2, 0};
  const auto peak = [](const Simulation& simulation) {
    return std::ranges::max(simulation.peak_activations);
  };
  for_shapes(from_2p, [&](int p, int m) {
    const double work = 6.0 * m;
    const auto zb_v = simulated("zb-v", {p, m}, t);
    expect_times(zb_v, work + p - 1, work, work);
    EXPECT_EQ(zb_v.peak_activations, all(p, 2 * p));
    const double half_idle = p == 2 ? 1 : p % 2 == 0 ? 3 * p - 7 : 3 * p - 4;
    const auto half = simulated("v-half", {p, m}, t);
    expect_times(half, work + half_idle, work + half_idle, work);
    EXPECT_EQ(peak(half), 2 * ((p + 2) / 2));
    const double least_idle = p % 3 == 0 ? 4 * p - 7 : 4 * p - 5;
    const auto least = simulated("v-min", {p, m}, t);
    expect_times(least, work + least_idle, work + least_idle, work);
    EXPECT_EQ(peak(least), 2 * ((p + 4) / 3));
    const auto dual = simulated("dualpipe-v", {p, m}, t);
    expect_times(dual, work + 2 * (p - 1), work + 2 * (p - 1), work);
    EXPECT_EQ(dual.peak_activations, all(p, 2 * p + 1));
  });
}

// The bubble rates of the paper, to its number of digits.
TEST(PublishedRates, OfZeroBubble) {
  for (const auto& row : kZeroBubbleRows) {
    const auto rate = [&](std::string_view name) {
      return simulated(name, {row.ranks, row.micro_batches}, row.times).bubble_rate;
    };
    EXPECT_NEAR(rate("1f1b"), row.one_forward_one_backward, 5e-5);
    EXPECT_NEAR(rate("zb-h1"), row.zb_h1, 5e-5);
    EXPECT_NEAR(rate("zb-h2"), row.zb_h2, 5e-5);
  }
}

TEST(Simulation, SaysWhatEachRankDoes) {
  const auto schedule = Schedule::parse("0F0 0B0\n1F0 1B0\n");
  const auto simulation = simulate(schedule, {{1, 1, 1, 0.5}, {4, 1, 1, 0.25}});
  EXPECT_EQ(simulation.makespan, 1 + 0.5 + 4 + 2 + 0.25 + 2);
  EXPECT_EQ(simulation.spans, (std::vector<double>{9.75, 6}));
  EXPECT_EQ(simulation.busy, (std::vector<double>{3, 6}));
  EXPECT_EQ(simulation.longest, 0u);
  EXPECT_DOUBLE_EQ(simulation.bubble_rate, (9.75 - 3) / 9.75);
  // Messages between stages of one rank take no time, and passes that begin together wait only
  // once.
  const auto pair =
      simulate(Schedule::parse("0F0 1F0 0F1 (1F1;1B0)OVERLAP_F_B 0B0 1B1 0B1\n"), {{1, 1, 1, 100}});
  EXPECT_EQ(pair.makespan, 12);
  EXPECT_EQ(pair.busy, std::vector<double>{12});
  EXPECT_EQ(pair.bubble_rate, 0);
}

TEST(Simulation, SharesTimesAmongTheStagesOfARank) {
  const auto schedule = Schedule::parse("0F0 2F0 0B0 2B0\n1F0 1B0\n");
  EXPECT_EQ(stage_times(schedule, {{4, 2, 6, 1}, {5, 5, 5, 2}}),
            (std::vector<StageTimes>{{2, 1, 3, 1}, {5, 5, 5, 2}, {2, 1, 3, 1}}));
}

TEST(PeakMemory, CountsWhatInputPartsFree) {
  const auto split = Schedule::parse("0F0 0F1 0I0 0F2 0W0 0I1 0I2 0W1 0W2\n");
  EXPECT_EQ(peak_memory(split, {0.0}), std::vector<double>{3});
  EXPECT_EQ(peak_memory(split, {0.5}), std::vector<double>{2.5});
  EXPECT_EQ(peak_memory(split, {1.0}), std::vector<double>{2});
  EXPECT_EQ(peak_memory(Schedule::parse("0F0 0F1 0B0 0F2 0B1 0B2\n"), {0.5}),
            std::vector<double>{2});
  // Half-stages count half.
  const auto halves = layout::make_schedule("zb-v", {4, 8});
  EXPECT_EQ(peak_memory(halves, {0.0}), std::vector<double>(4, 4.0));
}

}  // namespace
}  // namespace troika::plan
