// The published schedules: complete, free of deadlock, and refused outside of their domains.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "tests/support/errors.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/edges.h"
#include "troika/layout/schedules/pairs.h"
#include "troika/layout/schedules/replay.h"
#include "troika/layout/schedules/table.h"

namespace troika::layout {
namespace {

using testing::HasSubstr;

bool is_in_domain(const ScheduleRow& row, const PipelineShape& shape) {
  try {
    require_domain(row, shape);
  } catch (const Error&) {
    return false;
  }
  return true;
}

std::string shape_refusal(std::string_view name, const PipelineShape& shape) {
  try {
    make_schedule(name, shape);
  } catch (const Error& problem) {
    return problem.what();
  }
  return "none";
}

TEST(Schedules, HoldForAnyRanksAndMicroBatches) {
  int count = 0;
  for (const auto& row : schedule_table()) {
    for (int p = 1; p <= 7; ++p) {
      for (int m = 1; m <= 2 * p + 3; ++m) {
        for (int chunks = 1; chunks <= 3; ++chunks) {
          const PipelineShape shape{p, m, chunks};
          if (!is_in_domain(row, shape)) continue;
          const auto schedule = make_schedule(row.name, shape);
          EXPECT_NO_THROW(schedule.verify()) << row.name << " " << p << " " << m << " " << chunks;
          EXPECT_EQ(Schedule::parse(schedule.text()), schedule);
          EXPECT_EQ(read_schedule(passes_of(schedule).text(), "passes"), schedule);
          ++count;
        }
      }
    }
  }
  EXPECT_GT(count, 800);
}

TEST(Schedules, AreThePublishedOrders) {
  const auto passes = [](std::string_view name, int p, int m) {
    return passes_of(make_schedule(name, {p, m})).text();
  };
  EXPECT_EQ(passes("naive", 2, 2), "0F0 0B0 0F1 0B1\n1F0 1B0 1F1 1B1\n");
  EXPECT_EQ(passes("gpipe", 2, 3), "0F0 0F1 0F2 0B2 0B1 0B0\n1F0 1F1 1F2 1B2 1B1 1B0\n");
  EXPECT_EQ(passes("1f1b", 3, 4),
            "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
  EXPECT_EQ(passes("1f1b", 3, 1), "0F0 0B0\n1F0 1B0\n2F0 2B0\n");
  EXPECT_EQ(passes("interleaved", 2, 2),
            "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n"
            "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1\n");
  EXPECT_EQ(passes("bfs", 2, 2),
            "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0\n"
            "1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0\n");
  EXPECT_EQ(passes("zb-h1", 2, 3),
            "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2\n"
            "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2\n");
  EXPECT_EQ(passes("zb-h2", 2, 3),
            "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2\n"
            "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2\n");
  EXPECT_EQ(passes("zb-v", 2, 3),
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2\n"
            "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2\n");
  EXPECT_THAT(passes("dualpipe-v", 2, 4),
              testing::StartsWith(
                  "0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1)OVERLAP_F_B (3F2;0B0)OVERLAP_F_B 3B2 "
                  "(3F3;0B1)OVERLAP_F_B 3B3 "));
}

TEST(Schedules, RefuseWithTheNumbers) {
  EXPECT_EQ(shape_refusal("interleaved", {4, 6}),
            "[layout] schedule interleaved on 4 ranks; got 6 micro-batches, expected a multiple of "
            "the ranks");
  EXPECT_EQ(shape_refusal("dualpipe-v", {4, 7}),
            "[layout] schedule dualpipe-v on 4 ranks; got 7 micro-batches, expected at least twice "
            "the ranks");
  EXPECT_EQ(shape_refusal("zb-v", {.ranks = 4, .micro_batches = 8, .blocks = 7}),
            "[layout] schedule zb-v on 4 ranks; got a model of 7 blocks, expected at least 8, one "
            "for each of 2 stages on each rank");
  EXPECT_EQ(shape_refusal("zb-v", {.ranks = 4, .micro_batches = 8, .blocks = 8}), "none");
  EXPECT_THAT(shape_refusal("1f1b", {.ranks = 4, .micro_batches = 8, .blocks = 3}),
              HasSubstr("got a model of 3 blocks, expected at least 4"));
  EXPECT_EQ(shape_refusal("1f1b", {.ranks = 4, .micro_batches = 8, .chunks = 2}),
            "[layout] schedule 1f1b; got 2 stages on each rank, expected 1");
  EXPECT_EQ(shape_refusal("v-half", {.ranks = 4, .micro_batches = 8, .chunks = 1}),
            "[layout] schedule v-half; got 1 stages on each rank, expected 2");
  EXPECT_EQ(shape_refusal("gpipe", {.ranks = 0}),
            "[layout] schedule gpipe; got 0 ranks, expected from 1 to 4096");
  EXPECT_EQ(shape_refusal("gpipe", {.ranks = 4, .micro_batches = 0}),
            "[layout] schedule gpipe; got 0 micro-batches, expected at least 1");
  EXPECT_THAT(shape_refusal("gpipe", {.ranks = 4096, .micro_batches = 1'000'000}),
              HasSubstr("expected a product of at most 1000000"));
  EXPECT_THAT(shape_refusal("1f1", {4, 8}),
              HasSubstr("got 1f1, expected one of naive, gpipe, 1f1b, "));
  EXPECT_THAT(shape_refusal("zbv", {4, 8}), HasSubstr("(did you mean zb-v?)"));
}

TEST(Schedules, AreCompletedWithSkipsAndGathers) {
  const auto order = one_forward_one_backward_order({.ranks = 4, .micro_batches = 6});
  const auto whole = complete(order, {{0, 3}, {1, 3}}, true);
  EXPECT_NO_THROW(whole.verify());
  EXPECT_THAT(whole.text(), testing::StartsWith("0GATHER 0F0 0SEND_F0 0SEND_F0>3 0F1"));
  EXPECT_EQ(Schedule::parse(whole.text()), whole);
  for (const SkipEdge edge : {SkipEdge{0, 1}, {0, 4}, {2, 1}, {-1, 3}}) {
    EXPECT_THROW(complete(order, {edge}), Error) << edge.from << " " << edge.to;
  }
  // A skip between stages of one rank needs no message.
  const auto v = make_schedule("zb-v", {2, 4});
  EXPECT_EQ(complete(passes_of(v), {{0, 3}}), v);
}

TEST(Schedules, AreEvaluatedOnTheSameRanks) {
  EXPECT_EQ(passes_of(evaluation_schedule(make_schedule("zb-v", {2, 4}), 3)).text(),
            "0F0 0F1 3F0 0F2 3F1 3F2\n1F0 2F0 1F1 2F1 1F2 2F2\n");
  for (const auto& row : schedule_table()) {
    for (const int p : {1, 2, 3, 5}) {
      const auto training = make_schedule(row.name, {p, 2 * p});
      for (const int m : {1, 2, 7, 10}) {
        const auto evaluation = evaluation_schedule(training, m);
        EXPECT_NO_THROW(evaluation.verify()) << row.name << " " << p << " " << m;
        if (row.placement == StagePlacement::loop && row.chunks > 1 && m % p != 0) continue;
        double end = 0;
        for (const auto& passes : replay(evaluation, {StageTimes{}})) {
          end = std::max(end, passes.back().end);
        }
        EXPECT_EQ(end,
                  row.placement == StagePlacement::v ? 2 * m + 2 * p - 2 : row.chunks * m + p - 1)
            << row.name << " " << p << " " << m;
      }
    }
  }
  EXPECT_THROW(evaluation_schedule(make_schedule("gpipe", {2, 4}), 0), Error);
}

// Runs a schedule in which a send waits while `depth` messages of its edge are not received, and a
// pass receives its messages when it begins. Returns whether all passes run.
bool runs_with_depths(const Schedule& schedule, int change) {
  std::map<std::tuple<int, int, ActionKind>, int> room;
  for (const auto& edge : message_edges(schedule)) {
    room[{edge.from, edge.to, edge.kind}] = edge.depth + change;
  }
  std::map<std::tuple<int, int, ActionKind, int>, bool> sent;
  std::set<std::tuple<int, ActionKind, int>> done;
  std::vector<size_t> next(schedule.ranks.size(), 0);
  const auto advance = [&](size_t r) {
    const auto& action = schedule.ranks[r][next[r]];
    const int s = action.stage, m = action.micro_batch;
    if (action.kind == ActionKind::send_activation || action.kind == ActionKind::send_gradient) {
      auto& left = room[{s, peer_stage(action), action.kind}];
      if (left <= 0) return false;
      --left;
      sent[{s, peer_stage(action), action.kind, m}] = true;
    } else if (is_pass(action.kind) && action.kind != ActionKind::backward_weight) {
      const bool is_forward = action.kind == ActionKind::forward;
      const auto kind = is_forward ? ActionKind::send_activation : ActionKind::send_gradient;
      const int from = is_forward ? s - 1 : s + 1;
      if (room.contains({from, s, kind})) {
        if (!sent[{from, s, kind, m}]) return false;
        ++room[{from, s, kind}];
      }
    }
    ++next[r];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < next.size(); ++r) {
      while (next[r] < schedule.ranks[r].size() && advance(r)) moved = true;
    }
  }
  for (size_t r = 0; r < next.size(); ++r) {
    if (next[r] < schedule.ranks[r].size()) return false;
  }
  return true;
}

TEST(MessageEdges, HaveTheDepthThatLateReceiversNeed) {
  EXPECT_THAT(message_edges(make_schedule("1f1b", {2, 3})),
              testing::ElementsAre(MessageEdge{ActionKind::send_activation, 0, 1, 1},
                                   MessageEdge{ActionKind::send_gradient, 1, 0, 1}));
  bool is_needed = false;
  for (const auto& row : schedule_table()) {
    for (const int p : {2, 3, 4, 6}) {
      const auto schedule = make_schedule(row.name, {p, 3 * p});
      EXPECT_TRUE(runs_with_depths(schedule, 0)) << row.name << " " << p;
      is_needed |= !runs_with_depths(schedule, -1);
    }
  }
  EXPECT_TRUE(is_needed) << "one less deadlocks somewhere";
}

// With 2, 1 and 3 replicas of the stages, the messages of every pair of ranks have the same order
// on both ends.
TEST(Schedules, OfReplicasKeepTheirOrder) {
  const std::vector<int> replicas{2, 1, 3};
  for (const auto* name : {"1f1b", "zb-h2", "gpipe"}) {
    const auto whole = make_schedule(name, {3, 12});
    for (size_t s = 0; s + 1 < replicas.size(); ++s) {
      for (int a = 0; a < replicas[s]; ++a) {
        for (int b = 0; b < replicas[s + 1]; ++b) {
          const auto messages = [&](size_t stage, int replica, int other, int others) {
            std::vector<Action> sent;
            for (const auto& action :
                 actions_of_replica(whole.ranks[stage], replica, replicas[stage])) {
              if (is_message(action.kind) && action.micro_batch % others == other &&
                  (stage == s ? peer_stage(action) > action.stage
                              : peer_stage(action) < action.stage)) {
                sent.push_back(stage == s ? action : partner_of(action));
              }
            }
            return sent;
          };
          EXPECT_EQ(messages(s, a, b, replicas[s + 1]), messages(s + 1, b, a, replicas[s]));
        }
      }
    }
  }
  const auto group = Schedule::parse("(0SEND_F1;0RECV_B0) 0REDUCE (0F3;0B2)OVERLAP_F_B\n").ranks[0];
  EXPECT_EQ((Schedule{{actions_of_replica(group, 0, 2)}}.text()), "0RECV_B0 0REDUCE 0B2\n");
  EXPECT_EQ((Schedule{{actions_of_replica(group, 1, 2)}}.text()), "0SEND_F1 0REDUCE 0F3\n");
}

std::string pairs(std::string_view name, int ranks, int micro_batches) {
  const auto& row = schedule_row(name);
  return order_in_pairs(row, require_domain(row, {ranks, micro_batches})).text();
}

TEST(Pairs, TakeThePlacesOfMicroBatches) {
  EXPECT_EQ(pairs("1f1b", 1, 3), "0F0 0F1 0B0 0B1 0F2 0B2\n");
  EXPECT_EQ(pairs("1f1b", 2, 4),
            "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3\n");
  EXPECT_EQ(pairs("gpipe", 1, 2), "0F0 0F1 0B1 0B0\n");
  EXPECT_EQ(pairs("gpipe", 1, 3), "0F0 0F1 0F2 0B2 0B1 0B0\n");
  EXPECT_EQ(pairs("zb-h1", 1, 2), "0F0 0F1 0I0 0I1 0W0 0W1\n");
}

// The forward passes of a pair start together, so both wait for the inputs of both. Messages are
// in an order in which sends may wait for their receives.
TEST(Pairs, HoldForAnyRanksAndMicroBatches) {
  int count = 0;
  for (const auto& row : schedule_table()) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = 2; m <= 4 * p + 2; ++m) {
        PipelineShape shape{p, m}, half{p, (m + 1) / 2};
        if (!is_in_domain(row, shape) || !is_in_domain(row, half)) continue;
        shape = require_domain(row, shape);
        const auto order = order_in_pairs(row, shape);
        auto whole = complete(join_pairs(order));
        int joined = 0;
        for (auto& actions : whole.ranks) {
          for (size_t i = 0; i < actions.size(); ++i) joined += begins_pair(actions, i) ? 1 : 0;
          for (auto& action : actions) action.joined = false;
        }
        EXPECT_NO_THROW(whole.verify()) << row.name << " " << p << " " << m;
        EXPECT_EQ(joined, shape.stages() * (m / 2)) << row.name << " " << p << " " << m;
        // Gradients are added up in one order.
        std::map<int, std::vector<int>> found, expected;  // by stage
        const auto note = [](const Schedule& from, auto& to) {
          for (const auto& actions : from.ranks) {
            for (const auto& action : actions) {
              if (action.kind == ActionKind::forward || !is_pass(action.kind)) continue;
              if (action.kind == ActionKind::backward_input) continue;
              to[action.stage].push_back(action.micro_batch);
            }
          }
        };
        note(whole, found);
        note(row.order(shape), expected);
        EXPECT_EQ(found, expected) << row.name << " " << p << " " << m;
        ++count;
      }
    }
  }
  EXPECT_GT(count, 300);
}

// The price of pairs: a stage gives its outputs to the next one two by two.
TEST(Pairs, LengthenAStepByAForwardPassForEachFurtherStage) {
  for (const std::string name : {"gpipe", "1f1b"}) {
    const auto& row = schedule_row(name);
    for (const int p : {1, 2, 4}) {
      const auto shape = require_domain(row, {p, 4 * p});
      const auto length = [](const Schedule& passes) {
        double last = 0;
        for (const auto& rank : replay(passes, {StageTimes{}})) {
          last = std::max(last, rank.back().end);
        }
        return last;
      };
      const auto order = order_in_pairs(row, shape);
      EXPECT_EQ(length(order), length(row.order(shape))) << name << " " << p;
      EXPECT_EQ(length(join_pairs(order)), length(order) + p - 1) << name << " " << p;
    }
  }
}

TEST(Pairs, AreApartWhereAStepLacksOneOfThem) {
  const auto& row = schedule_row("1f1b");
  const auto passes = join_pairs(order_in_pairs(row, require_domain(row, {1, 4})));
  const auto joined = [](const std::vector<Action>& actions) {
    int count = 0;
    for (const auto& action : actions) count += action.joined ? 1 : 0;
    return count;
  };
  EXPECT_EQ(joined(actions_between(passes.ranks[0], 0, 4)), 2);
  EXPECT_EQ(joined(actions_between(passes.ranks[0], 0, 3)), 1);
  EXPECT_EQ(joined(actions_between(passes.ranks[0], 1, 4)), 1);
  EXPECT_EQ(joined(actions_between(passes.ranks[0], 1, 3)), 0);
}

TEST(Replay, TimesPassesAndMessages) {
  const auto schedule = Schedule::parse("0F0 0F1 0B0 0B1\n1F0 1I0 1F1 1I1 1W0 1W1\n");
  const auto timed = replay(schedule, {{1, 2, 3, 0.5}, {10, 20, 30, 0.25}});
  const auto times = [&](size_t rank) {
    std::vector<std::pair<double, double>> all;
    for (const auto& pass : timed[rank]) all.emplace_back(pass.begin, pass.end);
    return all;
  };
  using Times = std::vector<std::pair<double, double>>;
  EXPECT_EQ(
      times(1),
      (Times{{1.5, 11.5}, {11.5, 31.5}, {31.5, 41.5}, {41.5, 61.5}, {61.5, 91.5}, {91.5, 121.5}}));
  EXPECT_EQ(times(0), (Times{{0, 1}, {1, 2}, {31.75, 36.75}, {61.75, 66.75}}));
  // Passes that begin together wait for all that they need, and end together.
  const auto pair =
      replay(Schedule::parse("0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1B0 1F1 1B1\n"), {{1, 1, 1, 0}});
  EXPECT_EQ(pair[0][1].begin, 4);
  EXPECT_EQ(pair[0][1].end, 7);
  EXPECT_EQ(pair[1][2].begin, 7);
  EXPECT_EQ(peak_activations(schedule), (std::vector<int>{2, 2}));
  EXPECT_ERROR(replay(Schedule::parse("0F0 0B0\n1B0 1F0\n"), {{1, 1, 1, 0}}), ErrorKind::usage,
               "[layout] a schedule deadlocks; got rank 0 at 0B0 (backward, stage 0, "
               "micro-batch 0), which needs 1B0; rank 1 at 1B0 (backward, stage 1, micro-batch 0), "
               "which needs 1F0, expected a receive for each send, in one order on both ranks, and "
               "each action after those it needs");
}

}  // namespace
}  // namespace troika::layout
