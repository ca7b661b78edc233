// Faults of edges, with processes on every back end: all ranks are notified when one of them
// misbehaves on an edge, or when the two ends of an edge disagree.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <set>
#include <string>
#include <tuple>

#include "tests/comm/fault_job.h"
#include "troika/base/error.h"
#include "troika/comm/diagnostics/flight_report.h"

namespace troika::comm {
namespace {

class EdgeFaults : public testing::TestWithParam<const char*> {};

// Expects that the error of every survivor of three ranks names the rank that did not do its part
// of "step".
void expect_victim_to_be_named(const std::string& backend, const std::string& when,
                               const std::string& message, const std::string& missed) {
  for (const auto& [fault, victim, kind, why] :
       {std::tuple("kill", 0, ErrorKind::peer, std::string("rank {} is gone")),
        {"kill", 1, ErrorKind::peer, "rank {} is gone"},
        {"stop", 1, ErrorKind::timeout, "rank {} does not answer"},
        {"delay", 0, ErrorKind::timeout, "rank {} " + missed}}) {
    SCOPED_TRACE(fmt::format("{} of rank {}", fault, victim));
    FaultJob job(backend, fault, when, victim);
    std::set<int> survivors{0, 1, 2};
    survivors.erase(victim);
    const auto told = job.hear(survivors);
    job.permit();
    ASSERT_EQ(told.size(), survivors.size()) << "a survivor hangs, or ended without a word";
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(kind)) << words.what;
      EXPECT_THAT(words.what,
                  testing::AllOf(testing::HasSubstr(fmt::format(fmt::runtime(why), victim)),
                                 testing::HasSubstr(fmt::format(fmt::runtime(message), victim))))
          << "on rank " << rank;
      EXPECT_LT(words.milliseconds, kind == ErrorKind::peer ? kAtOnce : kAfterTimeout);
    }
    EXPECT_THAT(flight_report(job.record()),
                testing::AllOf(testing::HasSubstr(" waited in "),
                               testing::HasSubstr(fmt::format(fmt::runtime(message), victim))));
  }
}

TEST_P(EdgeFaults, ARankThatSendsNoMoreIsNamed) {
  expect_victim_to_be_named(GetParam(), "edge",
                            "receive #1 from rank {}, edge 5 'step' (fault_rank",
                            "has not sent it (last: barrier #1 'ready'");
}

TEST_P(EdgeFaults, ARankThatReceivesNoMoreIsNamed) {
  expect_victim_to_be_named(GetParam(), "edge_full", " to rank {}, edge 5 'step' (fault_rank",
                            "has not called receive for it (last: barrier #1 'ready'");
}

// Rank 2 takes no part in the edge.
TEST_P(EdgeFaults, EndsThatDisagreeAreToldToAllRanks) {
  for (const auto& [fault, kind, why] :
       {std::tuple("edge_shape", ErrorKind::usage,
                   "a tensor of another shape or dtype from rank 0, edge 5; got Float [2, 4], "
                   "expected Float [4, 2]"),
        {"edge_dtype", ErrorKind::usage,
         "a tensor of another shape or dtype from rank 0, edge 5; got Float [2, 4], expected "
         "Double [2, 4]"},
        {"edge_depth", ErrorKind::usage,
         "the ends of an edge have different depths: from rank 0, edge 5; got 3 at its sender, "
         "expected 2"},
        {"edge_tag", ErrorKind::timeout, "receive #0 from rank 0, edge 5 'step' (fault_rank"}}) {
    SCOPED_TRACE(fault);
    FaultJob job(GetParam(), fault, "before", 0);
    const bool is_late = kind == ErrorKind::timeout;
    auto told = job.hear(is_late ? std::set<int>{1} : std::set<int>{0, 1, 2});
    if (is_late) {
      job.permit();
      job.permit();
      told.merge(job.hear({0, 2}));
    }
    ASSERT_EQ(told.size(), 3U);
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(kind)) << words.what;
      EXPECT_THAT(words.what, testing::HasSubstr(why)) << "on rank " << rank;
      if (kind == ErrorKind::timeout) {
        EXPECT_THAT(words.what, testing::HasSubstr("rank 0 has not sent it (")) << rank;
      }
      EXPECT_LT(words.milliseconds, kAtOnce) << words.what;
    }
  }
}

std::string name_of(const testing::TestParamInfo<const char*>& row) {
  return row.param;
}
INSTANTIATE_TEST_SUITE_P(On, EdgeFaults, testing::Values(TROIKA_FAULT_BACKENDS), name_of);
#ifdef TROIKA_FAULT_GLOO
INSTANTIATE_TEST_SUITE_P(OnGloo, EdgeFaults, testing::Values("gloo"), name_of);
#endif

}  // namespace
}  // namespace troika::comm
