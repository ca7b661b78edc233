// How a lighthouse ends the membership of members, and the run.
#include <gmock/gmock.h>

#include "tests/quorum/simulated_run.h"

namespace troika::quorum {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Lets time pass in which all of `names` are alive.
void pass_alive(SimulatedRun& run, double time, const std::vector<std::string>& names) {
  for (int i = 0; i < time; ++i) {
    for (const auto& name : names) run.send(name, {});
    run.pass(1);
  }
}

TEST(Lighthouse, MembersThatDoNotFinishAStepAreLost) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.vote("a");
  for (int i = 0; i < 30; ++i) {
    run.send("a", {});
    run.send("b", {});
    run.pass(1);
  }
  EXPECT_EQ(run.kind("b"), News::Kind::refused);
  EXPECT_THAT(run.news["b"].text, HasSubstr("did not finish step 0"));
}

// A member that hangs is alive for the lighthouse. All others wait for it in the sum.
TEST(Lighthouse, MembersThatDoNotComeToTheSumAreLostAlone) {
  SimulatedRun run(rules_of(4, 1));
  run.begin(4);
  for (const auto* name : {"a", "c", "d"}) {
    run.send(name, {.kind = Report::Kind::summing, .id = run.quorum(name).id});
  }
  pass_alive(run, 29, {"a", "b", "c", "d"});
  EXPECT_EQ(run.kind("b"), News::Kind::quorum);
  pass_alive(run, 1, {"a", "b", "c", "d"});
  EXPECT_EQ(run.kind("b"), News::Kind::refused);
  EXPECT_THAT(run.news["b"].text, HasSubstr("did not begin its sum of step 0 within 30 s"));
  EXPECT_THAT(SimulatedRun::names(run.quorum("a")), ElementsAre("a", "c", "d"));
  EXPECT_EQ(run.quorum("a").step, 0);
  // The others begin their sums again.
  pass_alive(run, 40, {"a", "c", "d"});
  EXPECT_EQ(run.kind("a"), News::Kind::quorum);
  run.vote_all({"a", "c", "d"});
  EXPECT_EQ(run.quorum("a").step, 1);
}

TEST(Lighthouse, NamesTheProcessGroupsThatLostTheirPlace) {
  SimulatedRun run(rules_of(2, 1));
  run.send("a",
           {.kind = Report::Kind::join, .rank = 0, .process_group = 10, .rules = rules_of(2, 1)});
  run.send("b",
           {.kind = Report::Kind::join, .rank = 1, .process_group = 11, .rules = rules_of(2, 1)});
  EXPECT_THAT(run.lighthouse.take_refused(), ElementsAre());
  for (int i = 0; i < 6; ++i) {
    run.send("a", {});
    run.pass(1);
  }
  EXPECT_THAT(run.lighthouse.take_refused(), ElementsAre(11));
  EXPECT_THAT(run.lighthouse.take_refused(), ElementsAre());
}

TEST(Lighthouse, TheLowestRankSavesTheEndAndTheNextOneIfItIsLost) {
  SimulatedRun run(rules_of(3, 3));
  run.begin(3);
  run.vote_all({"a", "b", "c"});
  for (const auto* name : {"c", "b"}) run.send(name, {.kind = Report::Kind::done});
  EXPECT_EQ(run.kind("b"), News::Kind::quorum);
  run.send("a", {.kind = Report::Kind::done});
  EXPECT_EQ(run.kind("a"), News::Kind::save);
  // Fewer than min_replicas are enough to save.
  run.lose("a");
  EXPECT_EQ(run.kind("b"), News::Kind::save);
  EXPECT_NE(run.kind("c"), News::Kind::save);
  run.send("b", {.kind = Report::Kind::leave, .ok = true});
  EXPECT_EQ(run.kind("c"), News::Kind::finished);
  run.send("c", {.kind = Report::Kind::leave, .ok = true});
  run.join("d", 3);
  EXPECT_EQ(run.kind("d"), News::Kind::finished);
}

// The run is resumed after its last step.
TEST(Lighthouse, AFounderWithoutStepsSavesTheEnd) {
  SimulatedRun run(rules_of(2, 1));
  run.join("a", 0);
  run.join("b", 1);
  run.send("a", {.kind = Report::Kind::done});
  EXPECT_EQ(run.kind("a"), News::Kind::save);
  run.send("a", {.kind = Report::Kind::leave, .ok = true});
  EXPECT_EQ(run.kind("b"), News::Kind::finished);
}

TEST(Lighthouse, AFinishedRunTakesNobody) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.join("c", 2);
  run.vote_all({"a", "b"});
  run.send("a", {.kind = Report::Kind::leave, .ok = true});
  run.send("b", {.kind = Report::Kind::leave, .ok = true});
  EXPECT_EQ(run.kind("c"), News::Kind::finished);
  run.join("d", 3);
  EXPECT_EQ(run.kind("d"), News::Kind::finished);
  EXPECT_EQ(run.lighthouse.totals(), (Totals{.begun = kBatch, .counted = kBatch}));
}

}  // namespace
}  // namespace troika::quorum
