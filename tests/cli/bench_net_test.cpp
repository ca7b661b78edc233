// `troika bench net`: every variant is measured, the numbers fit together, and wrong input is
// refused.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing_support::run_program;

TEST(BenchNet, MeasuresEveryVariant) {
  const TemporaryFolder folder;
  const auto file = folder / "rows.json";
  const auto outcome = run_program("exec " TROIKA_PROGRAM
                                   " bench net --sizes 4K,100K --streams 2 --protections "
                                   "none,encrypted --min-time 0.001 --json " +
                                   file.string());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.orphans, 0);
  std::vector<std::string> found;
  const auto record = nlohmann::json::parse(read_file(file));
  EXPECT_EQ(record["benchmark"], "net");
  for (const auto& entry : record["rows"]) {
    const auto& row = entry["details"];
    SCOPED_TRACE(row.dump());
    found.push_back(row["operation"].get<std::string>() + " " + row["carrier"].get<std::string>() +
                    " " + row["protection"].get<std::string>() + " " + row["bytes"].dump());
    EXPECT_EQ(row["streams"], 2);
    EXPECT_GE(row["iterations"], 5);
    EXPECT_GT(row["min_microseconds"], 0);
    EXPECT_GE(row["p50_microseconds"], row["min_microseconds"]);
    EXPECT_GE(row["p99_microseconds"], row["p50_microseconds"]);
    const double microseconds = row["p50_microseconds"], bytes = row["bytes"];
    EXPECT_NEAR(row["bandwidth"].get<double>(), bytes / microseconds * 1e-3, 1e-9 + 1e-6 * bytes);
    EXPECT_GT(row["times_bare"], 0);
  }
  std::vector<std::string> wanted;
  for (const std::string variant : {"bare none ", "message none ", "message encrypted "}) {
    for (const std::string operation : {"round_trip ", "exchange "}) {
      for (const std::string bytes : {"4096", "102400"}) {
        wanted.push_back(operation + variant + bytes);
      }
    }
    wanted.push_back("messages " + variant + "64");
    wanted.push_back("death " + variant + "0");
  }
  for (const std::string variant : {"request none ", "request encrypted "}) {
    for (const std::string bytes : {"4096", "102400"}) {
      wanted.push_back("round_trip " + variant + bytes);
    }
  }
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(wanted));
}

TEST(BenchNet, RefusesWrongInput) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--operations death,rund_trip",
            "[bench] unknown operation; got rund_trip (did you mean round_trip?)"},
           {"--protections encrypt",
            "[net] unknown protection; got encrypt (did you mean encrypted?)"},
           {"--streams 17", "[bench] number of streams; got 17, expected an integer from 1 to 16"},
           {"--sizes 4X",
            "[bench] size; got 4X, expected a number of bytes from 1 to 4G (4K, 1M and 2G are "
            "multiples of 1024)"},
           {"--min-time 0",
            "[bench] --min-time; got 0, expected a number of seconds > 0 and <= "
            "3600"}}) {
    const auto outcome = run_program("exec " TROIKA_PROGRAM " bench net " + arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.err, "error: " + message + "\n");
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace troika
