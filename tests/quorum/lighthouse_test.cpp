// The protocol of quorums, with members that are only names and a clock that is a number.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <random>

#include "tests/quorum/simulated_run.h"

namespace troika::quorum {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Lighthouse, TheLowestRankFoundsTheRunWhenAllAreThere) {
  SimulatedRun run(rules_of(3, 1));
  run.join("c", 2);
  run.join("b", 1);
  EXPECT_EQ(run.kind("b"), News::Kind::waiting);
  run.join("a", 0);
  EXPECT_EQ(run.kind("a"), News::Kind::found);
  run.ready("a", 7);
  const auto& quorum = run.quorum("c");
  EXPECT_EQ(quorum.step, 7);
  EXPECT_THAT(SimulatedRun::names(quorum), ElementsAre("a", "b", "c"));
  EXPECT_EQ(quorum.find("a")->donor, "");
  EXPECT_EQ(quorum.find("b")->donor, "a");
  EXPECT_EQ(quorum.find("c")->donor, "a");
  EXPECT_EQ(quorum.find("b")->share, (Share{4, 4}));
}

TEST(Lighthouse, AStepCommitsWhenAllMembersVoted) {
  SimulatedRun run(rules_of(3, 1));
  run.begin(3);
  run.vote_all({"a", "b"});
  EXPECT_EQ(run.quorum("a").step, 0);
  run.vote("c");
  EXPECT_EQ(run.quorum("a").step, 1);
  EXPECT_EQ(run.lighthouse.totals(), (Totals{.begun = 2 * kBatch, .counted = kBatch}));
}

TEST(Lighthouse, ALostMemberCostsItsShareOfTheStep) {
  SimulatedRun run(rules_of(3, 1));
  run.begin(3);
  const auto before = run.quorum("a");
  run.vote("a");
  run.lose("b");
  const auto& retry = run.quorum("a");
  EXPECT_EQ(retry.step, 0);
  EXPECT_GT(retry.id, before.id);
  EXPECT_THAT(SimulatedRun::names(retry), ElementsAre("a", "c"));
  EXPECT_EQ(retry.find("c")->share, before.find("c")->share);
  // Votes on the earlier quorum count no more.
  for (const char* name : {"a", "c"}) {
    run.send(name, {.kind = Report::Kind::vote, .id = before.id, .ok = true});
  }
  EXPECT_EQ(run.quorum("c").step, 0);
  run.vote("c");
  EXPECT_EQ(run.quorum("c").step, 0);
  run.vote("a");
  EXPECT_EQ(run.quorum("c").step, 1);
  EXPECT_EQ(run.lighthouse.totals(),
            (Totals{.begun = 2 * kBatch, .counted = kBatch - 4, .lost = 1}));
  EXPECT_EQ(run.quorum("a").find("a")->share, (Share{0, 6}));
}

TEST(Lighthouse, AStepThatAllVotedOnStaysCommitted) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.vote_all({"b", "a"});
  run.lose("b");
  EXPECT_EQ(run.quorum("a").step, 1);
  EXPECT_EQ(run.lighthouse.totals().counted, kBatch);
}

TEST(Lighthouse, AJoinerComesWithTheNextStep) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.join("c", 2);
  run.vote("a");
  EXPECT_FALSE(run.news.contains("c"));
  run.vote("b");
  const auto& quorum = run.quorum("c");
  EXPECT_EQ(quorum.step, 1);
  EXPECT_EQ(quorum.find("c")->donor, "a");
  EXPECT_EQ(quorum.samples(), kBatch);
}

TEST(Lighthouse, PatientsOfALostDonorGetAnotherOne) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.join("c", 2);
  run.join("d", 3);
  run.vote_all({"a", "b"});
  EXPECT_EQ(run.quorum("c").find("c")->donor, "a");
  EXPECT_EQ(run.quorum("d").find("d")->donor, "b");
  run.heal("d");
  run.lose("a");
  EXPECT_THAT(SimulatedRun::names(run.quorum("b")), ElementsAre("b", "d"));
  run.vote_all({"b", "d"});
  EXPECT_EQ(run.quorum("c").step, 2);
  EXPECT_EQ(run.quorum("c").find("c")->donor, "b");
}

TEST(Lighthouse, AVoteWithoutTheStateDoesNotCount) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(1), run.join("b", 1), run.ready("a", 0), run.vote_all({"a", "b"});
  EXPECT_EQ(run.quorum("a").step, 0);
  run.heal("b"), run.vote("b");
  EXPECT_EQ(run.quorum("a").step, 1);
}

TEST(Lighthouse, ALaterProcessReplacesAnEarlierOneOfItsRank) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.join("b again", 1);
  EXPECT_EQ(run.kind("b"), News::Kind::refused);
  EXPECT_THAT(SimulatedRun::names(run.quorum("a")), ElementsAre("a"));
  run.vote("a");
  EXPECT_THAT(SimulatedRun::names(run.quorum("a")), ElementsAre("a", "b again"));
}

TEST(Lighthouse, TooFewReplicasWaitAndAreThenRefused) {
  SimulatedRun run(rules_of(3, 2));
  run.begin(3);
  run.lose("b");
  run.lose("c");
  run.vote("a");  // the step that has begun is made
  EXPECT_EQ(run.kind("a"), News::Kind::waiting);
  EXPECT_EQ(run.quorum("a").step, 1);
  EXPECT_THAT(run.news["a"].text, HasSubstr("1 of at least 2 replicas"));
  run.join("b again", 1);
  EXPECT_EQ(run.kind("a"), News::Kind::quorum);
  EXPECT_EQ(run.quorum("b again").find("b again")->donor, "a");
  run.lose("b again");
  run.vote("a");
  run.send("a", {});
  for (int i = 0; i < 11; ++i) {
    EXPECT_EQ(run.kind("a"), i < 10 ? News::Kind::waiting : News::Kind::refused) << i;
    run.send("a", {});
    run.pass(1);
  }
  EXPECT_THAT(run.news["a"].text, HasSubstr("min_replicas 2"));
}

TEST(Lighthouse, ARunBeginsWithTheLeastNumberAfterTheJoinTimeout) {
  SimulatedRun run(rules_of(3, 2));
  run.join("b", 1);
  run.join("c", 2);
  for (int i = 0; i < 9; ++i) {
    run.pass(1);
    run.send("b", {});
    run.send("c", {});
  }
  EXPECT_EQ(run.kind("b"), News::Kind::waiting);
  run.pass(1);
  EXPECT_EQ(run.kind("b"), News::Kind::found);
}

TEST(Lighthouse, SilentMembersAreLost) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.pass(4);
  run.send("a", {});
  run.pass(2);
  EXPECT_EQ(run.kind("b"), News::Kind::refused);
  EXPECT_THAT(run.news["b"].text, HasSubstr("silent for more than 5 s"));
  EXPECT_THAT(SimulatedRun::names(run.quorum("a")), ElementsAre("a"));
}

TEST(Lighthouse, ALighthouseThatStoodStillBlamesNobody) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.lighthouse.excuse(seconds(100));
  run.pass(100);
  EXPECT_EQ(run.kind("b"), News::Kind::quorum);
}

TEST(Lighthouse, AFailedSumIsRepeatedAFewTimes) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  for (int i = 0; i < 3; ++i) {
    run.vote("b", false);
    EXPECT_EQ(run.quorum("a").step, 0);
    EXPECT_EQ(run.kind("a"), News::Kind::quorum);
  }
  run.vote("b", false);
  EXPECT_EQ(run.kind("a"), News::Kind::refused);
  EXPECT_THAT(run.news["a"].text, HasSubstr("that of replica 1: a reason"));
}

TEST(Lighthouse, OtherRulesAreRefusedByName) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.send("c", {.kind = Report::Kind::join, .rank = 2, .rules = rules_of(2, 2)});
  EXPECT_EQ(run.kind("c"), News::Kind::refused);
  EXPECT_THAT(run.news["c"].text, HasSubstr("min_replicas 2"));
}

TEST(Lighthouse, JoinersFoundTheRunAgainIfAllOthersAreLost) {
  SimulatedRun run(rules_of(2, 1));
  run.begin(2);
  run.join("c", 2);
  run.lose("a");
  run.lose("b");
  EXPECT_EQ(run.kind("c"), News::Kind::waiting);
  run.join("a again", 0);
  EXPECT_EQ(run.kind("a again"), News::Kind::found);
}

TEST(Lighthouse, ALostFounderIsReplaced) {
  SimulatedRun run(rules_of(2, 1));
  run.join("a", 0);
  run.join("b", 1);
  run.lose("a");
  run.join("a again", 0);
  EXPECT_EQ(run.kind("a again"), News::Kind::found);
  run.ready("a again", 0);
  EXPECT_THAT(SimulatedRun::names(run.quorum("b")), ElementsAre("a again", "b"));
}

TEST(Lighthouse, TheFirstThatAsksNamesTheRun) {
  SimulatedRun run(rules_of(2, 1));
  const auto ask = [&](const std::string& name) { run.send(name, {.kind = Report::Kind::name}); };
  ask("a");
  EXPECT_EQ(run.news["a"].text, "");
  EXPECT_EQ(run.kind("a"), News::Kind::name);
  ask("b");
  EXPECT_FALSE(run.news.contains("b"));
  run.lose("a");
  EXPECT_EQ(run.kind("b"), News::Kind::name);
  ask("c");
  EXPECT_FALSE(run.news.contains("c"));
  run.send("b", {.kind = Report::Kind::name, .text = "run-2"});
  EXPECT_EQ(run.news["c"].text, "run-2");
  ask("a again");
  EXPECT_EQ(run.news["a again"].text, "run-2");
}

// Random members, losses and votes: a step commits once, for the same members on all of them, and
// its shares are those of its first quorum.
TEST(Lighthouse, RandomRuns) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&](int count) {
      return static_cast<int>(random() % static_cast<unsigned>(count));
    };
    SimulatedRun run(rules_of(4, 1));
    run.begin(4);
    std::vector<std::string> live{"a", "b", "c", "d"};
    int joined = 0;
    int64_t step = 0;
    std::map<int64_t, std::map<std::string, Share>> shares;
    bool is_refused = false;  // after too many failures one after another
    for (int event = 0; event < 300 && !is_refused; ++event) {
      const auto& name = live[static_cast<size_t>(draw(static_cast<int>(live.size())))];
      switch (draw(12)) {
        case 0:
          if (live.size() > 1) {
            run.lose(name);
            live.erase(std::ranges::find(live, name));
          }
          break;
        case 1:
          live.push_back(fmt::format("n{}", ++joined));
          run.join(live.back(), 100 + joined);
          break;
        case 2:
          run.vote(name, draw(4) > 0);
          break;
        default:
          if (run.kind(name) == News::Kind::found) {
            shares.clear();
            run.ready(name, step);
          } else if (run.kind(name) == News::Kind::quorum) {
            const auto* own = run.quorum(name).find(name);
            if (own && !own->donor.empty()) run.heal(name);
            run.vote(name);
          }
      }
      ASSERT_LE(run.lighthouse.totals().counted, run.lighthouse.totals().begun);
      for (const auto& member : live) {
        is_refused = is_refused || run.kind(member) == News::Kind::refused;
        if (run.kind(member) != News::Kind::quorum) continue;
        const auto& quorum = run.quorum(member);
        step = std::max(step, quorum.step);
        if (quorum.step < step) continue;
        auto& known = shares[quorum.step];
        int64_t sum = 0;
        for (const auto& one : quorum.members) {
          sum += one.share.count;
          ASSERT_EQ(known.emplace(one.name, one.share).first->second, one.share);
        }
        ASSERT_LE(sum, kBatch);
      }
    }
    EXPECT_TRUE(is_refused || step > 0) << step;
  }
}

}  // namespace
}  // namespace troika::quorum
