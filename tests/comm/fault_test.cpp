// The errors that ranks get when another rank misbehaves. Ranks are processes, on every back end.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tests/comm/fault_job.h"
#include "troika/base/error.h"
#include "troika/comm/diagnostics/flight_report.h"

namespace troika::comm {
namespace {

class Faults : public testing::TestWithParam<const char*> {
 protected:
  // Expects these errors on all ranks except the victim.
  static void expect_survivors(FaultJob& job, int victim, ErrorKind kind, double at_most_ms,
                               const testing::Matcher<std::string>& what) {
    std::set<int> survivors{0, 1, 2};
    survivors.erase(victim);
    const auto told = job.hear(survivors);
    ASSERT_EQ(told.size(), 2U) << "a survivor hangs, or ended without a word";
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(kind)) << words.what;
      EXPECT_THAT(words.what, what) << "on rank " << rank;
      EXPECT_LT(words.milliseconds, at_most_ms) << words.what;
    }
  }
};

// Faults that are tested with gloo, too.
class FaultsEverywhere : public Faults {};

// Rank 0 runs the rendezvous server, so its end is noticed in another way than the end of other
// ranks.
struct Case {
  int victim;
  const char* when;
};
constexpr Case kMoments[] = {{1, "before"}, {1, "during"}, {1, "after"}, {0, "during"}};
constexpr Case kBetweenCalls[] = {{1, "before"}, {1, "after"}, {0, "after"}};

std::string describe(const Case& row) {
  return fmt::format("rank {} {}", row.victim, row.when);
}

TEST_P(FaultsEverywhere, AKilledRankIsNamedAtOnce) {
  for (const auto& row : kMoments) {
    SCOPED_TRACE(describe(row));
    FaultJob job(GetParam(), "kill", row.when, row.victim);
    expect_survivors(job, row.victim, ErrorKind::peer, kAtOnce,
                     testing::HasSubstr(fmt::format("rank {} is gone", row.victim)));
  }
}

// Rank 0, which would forward the notice, is stopped.
TEST(FaultsInSharedMemory, ADeathIsSeenByEveryRankItself) {
  constexpr int kMany = 5;
  FaultJob job("shm", "kill_unserved", "during", 1, kMany);
  FaultJob::await_stop();
  job.permit();
  const auto told = job.hear({2, 3, 4});
  ASSERT_EQ(told.size(), 3U) << "a survivor hangs, or ended without a word";
  for (const auto& [rank, words] : told) {
    EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::peer));
    EXPECT_THAT(words.what, testing::EndsWith("rank 1 is gone: its process has ended")) << rank;
  }
}

TEST(FaultsInSharedMemory, ARankThatDiesInTheMiddleOfACopyIsNamedAtOnce) {
  for (const int victim : {0, 1}) {
    for (const char* when : {"copy_from", "copy_to"}) {
      SCOPED_TRACE(fmt::format("{} rank {}", when, victim));
      FaultJob job("shm", "kill", when, victim);
      std::set<int> survivors{0, 1, 2};
      survivors.erase(victim);
      const auto told = job.hear(survivors);
      ASSERT_EQ(told.size(), survivors.size()) << "a survivor hangs, or ended without a word";
      for (const auto& [rank, words] : told) {
        EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::peer)) << words.what;
        EXPECT_THAT(words.what, testing::HasSubstr(fmt::format("rank {} is gone", victim))) << rank;
        EXPECT_LT(words.milliseconds, kAtOnce) << words.what;
      }
    }
  }
}

TEST_P(Faults, AStoppedRankIsNamedAtTheDeadline) {
  for (const auto& row : kMoments) {
    SCOPED_TRACE(describe(row));
    FaultJob job(GetParam(), "stop", row.when, row.victim);
    expect_survivors(job, row.victim, ErrorKind::timeout, kAfterTimeout,
                     testing::HasSubstr(fmt::format("rank {} does not answer", row.victim)));
    EXPECT_THAT(flight_report(job.record()),
                testing::HasSubstr(fmt::format("rank {}", row.victim)));
  }
}

TEST_P(Faults, ALateRankIsNamedAtTheDeadline) {
  for (const auto& row : kBetweenCalls) {
    SCOPED_TRACE(describe(row));
    FaultJob job(GetParam(), "delay", row.when, row.victim);
    const auto missed = row.when == std::string("before") ? "'step'" : "'next'";
    const auto named = fmt::format("rank {} has not called it", row.victim);
    expect_survivors(job, row.victim, ErrorKind::timeout, kAfterTimeout,
                     testing::AllOf(testing::HasSubstr(named), testing::HasSubstr(missed)));
    // The rank is late, and gets an error with the reason.
    job.permit();
    const auto told = job.hear({row.victim});
    ASSERT_TRUE(told.contains(row.victim));
    EXPECT_EQ(told.at(row.victim).kind, static_cast<int>(ErrorKind::timeout));
    EXPECT_THAT(told.at(row.victim).what, testing::HasSubstr(named));
  }
}

TEST_P(Faults, ARankThatIsLateWithinTheDeadlineIsNoFault) {
  FaultJob job(GetParam(), "late", "during");
  job.permit();
  const auto told = job.hear({0, 1, 2});
  ASSERT_EQ(told.size(), 3U);
  for (const auto& [rank, words] : told) EXPECT_EQ(words.what, "done") << "rank " << rank;
}

TEST_P(Faults, ARankThatLeavesEarlyIsNamedAtOnce) {
  for (const auto& row : kBetweenCalls) {
    SCOPED_TRACE(describe(row));
    FaultJob job(GetParam(), "leave", row.when, row.victim);
    expect_survivors(job, row.victim, ErrorKind::peer, kAtOnce,
                     testing::HasSubstr(fmt::format(
                         "rank {} has left and takes no part in all_reduce #", row.victim)));
  }
}

// All other ranks wait for a message from the victim.
TEST_P(FaultsEverywhere, ARankThatSendsNoMessageIsNamed) {
  constexpr int kMany = 5;
  for (const auto& [fault, victim, kind, why] :
       {std::tuple("kill", 0, ErrorKind::peer, "rank 0 is gone"),
        {"kill", 3, ErrorKind::peer, "rank 3 is gone"},
        {"stop", 3, ErrorKind::timeout, "rank 3 does not answer"},
        {"delay", 0, ErrorKind::timeout, "rank 0 has not sent it (last: barrier #0 'start'"}}) {
    SCOPED_TRACE(fmt::format("{} of rank {}", fault, victim));
    std::set<int> survivors{0, 1, 2, 3, 4};
    survivors.erase(victim);
    FaultJob job(GetParam(), fault, "receive", victim, kMany);
    const auto told = job.hear(survivors);
    job.permit();
    ASSERT_EQ(told.size(), survivors.size()) << "a survivor hangs, or ended without a word";
    const auto message = fmt::format("receive #0 from rank {}, tag 5 'step' (fault_rank", victim);
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(kind)) << words.what;
      EXPECT_THAT(words.what, testing::AllOf(testing::HasSubstr(why), testing::HasSubstr(message)));
    }
    EXPECT_THAT(flight_report(job.record()), testing::HasSubstr(" waited in " + message));
  }
}

// In shared memory, this is known at once; with other back ends, messages may still be in flight.
TEST_P(Faults, AGroupThatTheSenderHasDroppedGivesNoMessage) {
  const bool at_once = GetParam() == std::string("shm");
  FaultJob job(GetParam(), "drop", "before", 0);
  const auto told = job.hear({1, 2});
  ASSERT_EQ(told.size(), 2U) << "a rank ended without a word";
  for (const auto& [rank, words] : told) {
    EXPECT_EQ(words.kind, static_cast<int>(at_once ? ErrorKind::peer : ErrorKind::timeout))
        << words.what;
    EXPECT_THAT(words.what, testing::HasSubstr("rank 0 has left the group"));
  }
}

TEST_P(Faults, MismatchesAreToldToAllRanks) {
  for (const auto& [fault, victim, called] : {std::tuple("operation", 1, "rank 1: broadcast #1"),
                                              {"count", 0, "rank 0: all_reduce #1 'step'"},
                                              {"dtype", 1, "rank 1: all_reduce #1 'step'"}}) {
    SCOPED_TRACE(fault);
    FaultJob job(GetParam(), fault, "before", victim);
    const auto told = job.hear({0, 1, 2});
    ASSERT_EQ(told.size(), 3U);
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::usage)) << words.what;
      EXPECT_THAT(words.what, testing::AllOf(testing::HasSubstr("ranks called different"),
                                             testing::HasSubstr(called)))
          << "on rank " << rank;
      EXPECT_LT(words.milliseconds, kAtOnce) << words.what;
    }
  }
}

TEST_P(FaultsEverywhere, AMessageOfAnotherSizeIsToldToAllRanks) {
  for (const auto& [fault, count] : {std::pair("message", 9), {"message_long", 100'000}}) {
    SCOPED_TRACE(fault);
    FaultJob job(GetParam(), fault, "before", 0);
    const auto told = job.hear({0, 1, 2});
    ASSERT_EQ(told.size(), 3U);
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::usage)) << words.what;
      EXPECT_THAT(words.what, testing::HasSubstr(fmt::format(
                                  "a message of another size from rank 0, tag 0; got Float x {}, "
                                  "expected Float x 8",
                                  count)));
    }
  }
}

// Most ranks agree with their neighbours here, and messages go between ranks that do not.
void expect_halves_to_be_told(const std::string& backend, int nodes) {
  struct Row {
    const char* fault;
    int ranks;
    int root;
    const char* low;
    const char* high;
    bool on_mpi = false;  // where each rank loads LibTorch by itself, a few of the rows do
  };
  constexpr Row kRows[] = {
      {"broadcast", 8, 1, "Float x 8 with root 1", "Float x 4096 with root 1", true},
      {"reduce", 8, 0, "Float x 8 sum with root 0", "Float x 4096 sum with root 0"},
      {"gather", 6, 1, "Float x 8 with root 1", "Float x 4096 with root 1", true},
      {"gather_reversed", 8, 1, "Float x 4096 with root 1", "Float x 8 with root 1"},
      {"scatter", 6, 0, "Float x 8 with root 0", "Float x 4096 with root 0", true},
      {"rabenseifner", 8, 0, "Float x 8 sum by rabenseifner", "Float x 4096 sum by rabenseifner",
       true},
      {"root", 6, 0, "Float x 8 with root 0", "Float x 8 with root 5"},
      {"algorithm", 8, 0, "Float x 8 sum by ring", "Float x 8 sum by recursive_doubling"},
      {"empty", 6, 0, "Float x 0 sum", "Float x 8 sum"},
  };
  for (const auto& [fault, ranks, root, low, high, on_mpi] : kRows) {
    if (backend == "mpi" && !on_mpi) continue;
    SCOPED_TRACE(fault);
    FaultJob job(backend, fault, "halves", root, ranks, nodes);
    std::set<int> all;
    for (int r = 0; r < ranks; ++r) all.insert(r);
    const auto told = job.hear(all);
    ASSERT_EQ(told.size(), all.size()) << "a rank hangs, or ended without a word";
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::usage)) << words.what;
      EXPECT_THAT(words.what,
                  testing::AllOf(testing::HasSubstr("ranks called different collectives"),
                                 testing::HasSubstr(low), testing::HasSubstr(high)))
          << "on rank " << rank;
      EXPECT_LT(words.milliseconds, kAtOnce) << words.what;
    }
  }
}

TEST_P(Faults, HalvesThatCallDifferentThingsAreToldBothCalls) {
  expect_halves_to_be_told(GetParam(), 1);
}

TEST(FaultsOnNodes, HalvesThatCallDifferentThingsAreToldBothCalls) {
  expect_halves_to_be_told("auto", 2);
}

std::string backend_of(const testing::TestParamInfo<const char*>& row) {
  return row.param;
}
INSTANTIATE_TEST_SUITE_P(On, Faults, testing::Values(TROIKA_FAULT_BACKENDS), backend_of);
INSTANTIATE_TEST_SUITE_P(On, FaultsEverywhere, testing::Values(TROIKA_FAULT_BACKENDS), backend_of);
#ifdef TROIKA_FAULT_GLOO
INSTANTIATE_TEST_SUITE_P(OnGloo, FaultsEverywhere, testing::Values("gloo"), backend_of);
#endif

}  // namespace
}  // namespace troika::comm
