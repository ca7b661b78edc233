// A rank of a pipeline is killed, stopped, hangs or throws: every other rank gets an error in time,
// which names the stage, the micro-batch and the direction of the message that it waited for.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>

#include "tests/comm/fault_job.h"
#include "tests/parallel/pipeline_fault_rank.h"
#include "troika/base/error.h"

namespace troika::parallel {
namespace {

class PipelineFaults : public testing::TestWithParam<const char*> {
 protected:
  // Expects that all ranks except the victim end with an error of `kind` that says `why` about the
  // victim.
  static void expect_named(const std::string& fault, const std::string& when, int victim,
                           ErrorKind kind, const std::string& why) {
    SCOPED_TRACE(fmt::format("{} of rank {} in {}", fault, victim, when));
    comm::FaultJob job(GetParam(), fault, when, victim, kFaultStages, 1, run_pipeline_fault_rank);
    job.expect_others_told(
        victim, kFaultStages, kind, [&](int rank) -> testing::Matcher<const std::string&> {
          return testing::AllOf(
              testing::MatchesRegex(
                  fmt::format("\\[parallel\\] stage {} (sends|receives) (activations|gradients) of "
                              "micro-batch [0-7] (to|from) stage [0-3] on rank [0-3]: \\[comm\\].*",
                              rank)),
              testing::ContainsRegex(fmt::format("rank {} {}", victim, why)));
        });
  }
};

TEST_P(PipelineFaults, AKilledRankIsNamedAtOnce) {
  expect_named("kill", "forward", 1, ErrorKind::peer, "is gone");
  expect_named("kill", "backward", 0, ErrorKind::peer, "is gone");
  expect_named("kill", "receive", 3, ErrorKind::peer, "is gone");
}

TEST_P(PipelineFaults, AStoppedRankIsNamedAtTheDeadline) {
  // With gloo, notices go only through rank 0, and a rank that gives up closes its connections.
  const int victim = GetParam() == std::string("gloo") ? 2 : 0;
  expect_named("stop", "backward", victim, ErrorKind::timeout, "does not answer");
  expect_named("stop", "receive", 1, ErrorKind::timeout, "does not answer");
}

TEST_P(PipelineFaults, ARankThatHangsIsNamedAtTheDeadline) {
  expect_named("delay", "forward", 2, ErrorKind::timeout, "(has not|waits for no message)");
  expect_named("delay", "backward", 0, ErrorKind::timeout, "(has not|waits for no message)");
}

TEST_P(PipelineFaults, ARankThatThrowsIsNamedAtOnce) {
  expect_named("throw", "forward", 3, ErrorKind::peer, "is gone: its program failed");
  expect_named("throw", "backward", 0, ErrorKind::peer, "is gone: its program failed");
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineFaults, testing::Values(TROIKA_FAULT_BACKENDS));

}  // namespace
}  // namespace troika::parallel
