// The choice of the checkpoints to keep, by their scores. Lightning 2.6.6 keeps the same ones if it
// has the options.
#include "troika/train/callbacks/checkpoint_manager.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

namespace troika::train {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

using Names = std::vector<std::string>;
using Scores = std::vector<double>;

// A manager gets these scores, one after the other. The checkpoints are named "0", "1"...
struct Rule {
  int64_t save_top_k;
  std::string mode;  // empty: nothing is monitored
  Scores scores;
  Names best, all;  // `all`: that are not removed
};

TEST(CheckpointManager, KeepsTheBestAndTheLatest) {
  const double nan = NAN;
  const std::vector<Rule> rules{
      {1, "min", {3, 1, 2}, {"1"}, {"1", "2"}},
      {1, "max", {3, 1, 2}, {"0"}, {"0", "2"}},
      {2, "min", {3, 1, 2}, {"1", "2"}, {"1", "2"}},
      {2, "min", {3, 1, 2, 4}, {"1", "2"}, {"1", "2", "3"}},
      {5, "min", {3, 1}, {"1", "0"}, {"0", "1"}},
      {-1, "min", {3, 1, 2}, {"1", "2", "0"}, {"0", "1", "2"}},
      {0, "min", {3, 1, 2}, {}, {"2"}},
      {2, "min", {1, 1, 1}, {"0", "1"}, {"0", "1", "2"}},
      {2, "min", {1, 1, 0.5}, {"2", "1"}, {"1", "2"}},
      {2, "min", {nan, 3, 2}, {"2", "1"}, {"1", "2"}},
      {2, "max", {nan, 3}, {"1", "0"}, {"0", "1"}},
      {1, "max", {nan, nan}, {"0"}, {"0", "1"}},
      {1, "min", {INFINITY, nan, -INFINITY, 0}, {"2"}, {"2", "3"}},
      // Without a metric the scores do not matter.
      {1, "", {0, 0, 0}, {"2"}, {"2"}},
      {2, "", {0, 0, 0}, {"2", "1"}, {"1", "2"}},
      {-1, "", {0, 0, 0}, {"2", "1", "0"}, {"0", "1", "2"}},
      {0, "", {0, 0, 0}, {}, {"2"}},
  };
  for (size_t i = 0; i < rules.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& rule = rules[i];
    CheckpointManager manager(rule.save_top_k, {rule.mode.empty() ? "" : "score", rule.mode});
    std::set<std::string> present;
    for (size_t s = 0; s < rule.scores.size(); ++s) {
      const auto name = std::to_string(s);
      if (manager.is_among_best(rule.scores[s])) manager.propose(rule.scores[s]);
      manager.begin_writing();
      present.insert(name);
      for (const auto& removed : manager.finish_writing(name)) {
        EXPECT_EQ(present.erase(removed), 1u) << "is removed once: " << removed;
      }
      EXPECT_EQ(manager.latest(), name);
    }
    Names best;
    for (const auto& kept : manager.all_best()) best.push_back(kept.name);
    EXPECT_EQ(best, rule.best);
    EXPECT_EQ(Names(present.begin(), present.end()), rule.all);
    EXPECT_EQ(manager.best(), rule.best.empty() ? "" : rule.best.front());
  }
}

// After a kill between writing a checkpoint and removing another, the next checkpoint removes it.
TEST(CheckpointManager, GoesOnFromWhatAKillLeft) {
  const Monitor monitor("score", "min");
  CheckpointManager before(1, monitor);
  for (const auto& [name, score] : {std::pair("a", 3.0), {"b", 4.0}}) {
    if (before.is_among_best(score)) before.propose(score);
    before.begin_writing();
    before.finish_writing(name);
  }
  before.propose(2);
  const auto saved = before.state();  // in "c", while "a" and "b" are there
  CheckpointManager after(1, monitor);
  after.resume("c", saved, {"a", "b", "c"}, /*may_remove=*/true);
  EXPECT_EQ(after.best(), "c");
  after.propose(1);
  after.begin_writing();
  EXPECT_THAT(after.finish_writing("d"), UnorderedElementsAre("a", "b", "c"));

  CheckpointManager chosen(1, monitor);
  chosen.resume("c", saved, {"a", "b", "c"}, /*may_remove=*/false);
  chosen.propose(1);
  chosen.begin_writing();
  EXPECT_THAT(chosen.finish_writing("d"), ElementsAre());
}

// The checkpoint that the user chose is kept, also if the run resumes from a later one.
TEST(CheckpointManager, NeverRemovesWhatSomebodyChose) {
  for (const bool has_monitor : {false, true}) {
    for (const char* chosen : {"a", "keep"}) {
      const Monitor monitor(has_monitor ? "score" : "", has_monitor ? "min" : "");
      CheckpointManager before(1, monitor);
      before.propose(3);
      before.begin_writing();
      const auto in_a = before.state();
      before.finish_writing("a");
      CheckpointManager first(1, monitor);
      const bool is_a = chosen == std::string("a");
      first.resume(chosen, is_a ? in_a : before.state(), {"a", chosen}, /*may_remove=*/false);
      first.propose(2);
      first.begin_writing();
      const auto in_b = first.state();
      EXPECT_THAT(first.finish_writing("b"), testing::Not(testing::Contains(chosen)));
      CheckpointManager requeued(1, monitor);
      requeued.resume("b", in_b, {chosen, "b"}, /*may_remove=*/true);
      requeued.propose(1);
      requeued.begin_writing();
      EXPECT_THAT(requeued.finish_writing("c"), ElementsAre("b")) << chosen;
    }
  }
}

TEST(CheckpointManager, ASmallerNumberHoldsFromTheNextCheckpointOn) {
  const Monitor monitor("score", "min");
  CheckpointManager before(3, monitor);
  for (const auto& [name, score] : {std::pair("a", 3.0), {"b", 4.0}, {"c", 5.0}}) {
    before.propose(score);
    before.begin_writing();
    before.finish_writing(name);
  }
  CheckpointManager after(1, monitor);
  after.resume("c", before.state(), {"a", "b", "c"}, /*may_remove=*/true);
  after.propose(1);
  after.begin_writing();
  EXPECT_THAT(after.finish_writing("d"), UnorderedElementsAre("a", "b", "c"));
  EXPECT_EQ(after.all_best().size(), 1u);
}

}  // namespace
}  // namespace troika::train
