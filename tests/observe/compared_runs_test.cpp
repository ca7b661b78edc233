#include "troika/observe/report/compared_runs.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika::observe::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class RunsToCompare : public testing::Test {
 protected:
  // Writes a run with these accuracies after 10, 20, ... steps.
  std::filesystem::path make(const std::string& name, const std::vector<double>& accuracies,
                             double step_milliseconds) {
    const auto run = folder_ / name;
    std::filesystem::create_directories(run);
    write_file_atomically(run / "config.toml", "");
    std::string rows = "step,train/loss,validation/accuracy\n";
    for (size_t i = 0; i < accuracies.size(); ++i) {
      rows += fmt::format("{},{},{}\n", 10 * (i + 1), 1 - accuracies[i], accuracies[i]);
    }
    write_file_atomically(run / "metrics.csv", rows);
    write_summary(run / "summary.json",
                  {.name = name, .median_step_milliseconds = step_milliseconds});
    return run;
  }
  // A simulated step of 50 ms.
  static void simulate(const std::filesystem::path& run) {
    write_file_atomically(run / "simulated.json",
                          R"({"otherData": {"clock_error_microseconds": [0]}, "traceEvents": [
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0, simulated"}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"compute"}},
{"ph":"X","name":"step","pid":0,"tid":1,"ts":0,"dur":50000,"args":{"step":0}}]})");
  }
  const TemporaryFolder folder_;
};

TEST_F(RunsToCompare, ReachTheBestValueOfAllAtTheirTimes) {
  const auto slow = make("slow", {0.5, 0.8, 0.9, 0.7}, 200),
             fast = make("fast", {0.6, 0.7, 0.8}, 100);
  simulate(fast);
  const auto compared = compare_runs({slow, fast}, {});
  EXPECT_EQ(compared.metric, "validation/accuracy");
  EXPECT_FALSE(compared.lower_is_better);
  EXPECT_EQ(compared.reached_by_all(), 0.8);
  EXPECT_EQ(compared.runs[0].best(false), 0.9);
  EXPECT_EQ(compared.runs[0].step_of(0.8, false), 20);
  EXPECT_EQ(compared.runs[0].step_of(0.95, false), std::nullopt);
  EXPECT_EQ(
      comparison_text(compared),
      "run   best  step time, ms  simulated, ms  steps to it  seconds to it  simulated to it\n"
      "slow   0.9            200              -           20              4                -\n"
      "fast   0.8            100             50           30              3              1.5\n"
      "\"it\" is validation/accuracy 0.8, the best value that all runs have reached.\n");
  const auto html = comparison_page(compared);
  EXPECT_THAT(html, AllOf(HasSubstr("validation/accuracy over steps"),
                          HasSubstr("validation/accuracy over measured time"),
                          HasSubstr("validation/accuracy over simulated time"),
                          HasSubstr("<title>slow: 0.9 after seconds 6</title>"),
                          HasSubstr("<title>fast: 0.8 after seconds 1.5</title>"),
                          Not(HasSubstr("<title>slow: 0.9 after seconds 1.5</title>"))));
}

TEST_F(RunsToCompare, MayBeComparedByALoss) {
  const auto one = make("one", {0.5, 0.8}, 1), other = make("other", {0.75, 0.7}, 1);
  const auto compared = compare_runs({one, other}, {.metric = "train/loss"});
  EXPECT_TRUE(compared.lower_is_better);
  EXPECT_EQ(compared.reached_by_all(), 0.25);
  EXPECT_EQ(compared.runs[0].step_of(0.25, true), 20);
  EXPECT_EQ(compared.runs[1].step_of(0.25, true), 10);
  EXPECT_THAT(comparison_page(compared), Not(HasSubstr("over simulated time")));
}

TEST_F(RunsToCompare, OfOneNameHaveTheirPaths) {
  const auto one = make("a/run", {0.5}, 1), other = make("b/run", {0.5}, 1);
  EXPECT_EQ(compare_runs({one, other}, {}).runs[1].name, other.string());
}

TEST_F(RunsToCompare, AreRefusedWithTheCause) {
  const auto one = make("one", {0.5}, 1), killed = make("killed", {0.5}, 1);
  std::filesystem::remove(killed / "summary.json");
  EXPECT_ERROR(compare_runs({one}, {}), ErrorKind::usage,
               "[observe] runs that are compared; got 1, expected two or more");
  EXPECT_ERROR(compare_runs({one, killed}, {}), ErrorKind::usage,
               "[observe] a run that is compared has ended; got " + killed.string() +
                   " without summary.json, expected a finished, stopped or failed run");
  EXPECT_ERROR(compare_runs({one, one}, {.metric = "train/los"}), ErrorKind::usage,
               "[observe] a run lacks the metric that is compared; got " + one.string() +
                   " without a finite value of train/los, expected a column of metrics.csv that "
                   "all runs have");
}

}  // namespace
}  // namespace troika::observe::report
