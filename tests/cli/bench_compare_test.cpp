// The script bench/compare.
#include <gtest/gtest.h>

#include "tests/support/subprocess.h"
#include "troika/base/benchmark_record.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing_support::Outcome;
using testing_support::run_program;

class BenchCompare : public testing::Test {
 protected:
  Outcome compare(const BenchmarkRecord& before, const BenchmarkRecord& after) const {
    write_file_atomically(folder_ / "before.json", before.to_json());
    write_file_atomically(folder_ / "after.json", after.to_json());
    return compare("before.json", "after.json");
  }
  Outcome compare(const std::string& before, const std::string& after) const {
    return run_program("cd " + folder_.path().string() + " && exec " TROIKA_BENCH_COMPARE " " +
                       before + " " + after);
  }
  static BenchmarkRecord record(std::vector<double> times, std::vector<double> rates) {
    BenchmarkRecord record("trial", {});
    record.add("time", "ms", Better::lower, std::move(times));
    record.add("rate", "1/s", Better::higher, std::move(rates));
    return record;
  }

  const TemporaryFolder folder_;
};

TEST_F(BenchCompare, TellsWhatChangedBeyondTheSpread) {
  const auto worse = compare(record({1, 2, 3}, {10, 11}), record({4, 5, 6}, {10, 12}));
  EXPECT_EQ(worse.exit_code, 1) << worse.err;
  EXPECT_NE(worse.out.find("2.500  worse"), std::string::npos) << worse.out;
  EXPECT_NE(worse.out.find("0 better, 1 worse, 1 same"), std::string::npos) << worse.out;
  const auto better = compare(record({1, 2, 3}, {10, 11}), record({3, 4, 5}, {12, 13}));
  EXPECT_EQ(better.exit_code, 0) << better.err;
  EXPECT_NE(better.out.find("1 better, 0 worse, 1 same"), std::string::npos) << better.out;
}

TEST_F(BenchCompare, TellsWhatIsNewAndWhatIsGone) {
  auto after = record({1}, {1});
  after.add("memory", "B", Better::lower, {1});
  const auto outcome = compare(record({1}, {1}), after);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("new\n"), std::string::npos) << outcome.out;
}

TEST_F(BenchCompare, RefusesWhatIsNoRecord) {
  write_file_atomically(folder_ / "list.json", "[1, 2]");
  write_file_atomically(folder_ / "text.json", "no JSON");
  write_file_atomically(folder_ / "trial.json", record({1}, {1}).to_json());
  write_file_atomically(folder_ / "other.json", BenchmarkRecord("other", {}).to_json());
  for (const std::string bad : {"list.json", "text.json", "missing.json", "other.json"}) {
    const auto outcome = compare("trial.json", bad);
    EXPECT_EQ(outcome.exit_code, 2) << bad;
    EXPECT_TRUE(outcome.err.starts_with("error: [compare] ")) << outcome.err;
    EXPECT_EQ(outcome.err.find("Traceback"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace troika
