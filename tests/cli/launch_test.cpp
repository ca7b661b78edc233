// `troika launch`: which arguments belong to it and which to the program.
#include <gmock/gmock.h>

#include <filesystem>
#include <vector>

#include "tests/support/subprocess.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::HasSubstr;
using testing_support::Outcome;
using testing_support::run_program;

Outcome launch(const std::string& arguments) {
  return run_program("exec " TROIKA_PROGRAM " launch " + arguments);
}

TEST(Launch, AllFromTheProgramOnIsItsOwn) {
  const std::pair<const char*, const char*> rows[] = {
      {"echo hi -n 3", "hi -n 3\n"},
      {"-n 2 echo x --tee", "x --tee\n"},
      {"-n 2 echo x --help", "x --help\n"},
      {"-n 1 -- echo --tee -n 3", "--tee -n 3\n"},
      {"-- echo train -h", "train -h\n"},
      {"-n 1 -- echo a -- b", "a -- b\n"},
      {"echo a -- b --tee", "a -- b --tee\n"},
      {"echo --", "--\n"},
      {"echo 'two words' ''", "two words \n"},
      {"echo train doctor launch", "train doctor launch\n"},
      {"-- sh -c 'echo $0 $RANK $WORLD_SIZE' --tee", "--tee 0 1\n"},
  };
  for (const auto& [arguments, printed] : rows) {
    SCOPED_TRACE(arguments);
    const auto outcome = launch(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, printed);
    EXPECT_EQ(outcome.orphans, 0);
  }
}

TEST(Launch, ItsOwnOptionsComeBeforeTheProgram) {
  const auto outcome = launch("--tee -n 2 sh -c 'echo $RANK'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] 1\n"));
}

TEST(Launch, RefusesNoProgramAndUnknownOptions) {
  const std::string none =
      "error: [cluster] program to launch; got none, expected a program and its arguments\n";
  const std::string unknown = " (did you mean --tee? `troika launch --help` shows what it takes)\n";
  const std::pair<std::string, std::string> rows[] = {
      {"", none},
      {"-n 2", none},
      {"-n 2 --", none},
      {"''",
       "error: [launch] program to launch; got an empty name, expected a program and its "
       "arguments\n"},
      {"-- '' x",
       "error: [launch] program to launch; got an empty name, expected a program and "
       "its arguments\n"},
      {"--tea echo x", "error: [launch] unknown option; got --tea" + unknown},
      {"--tea -- echo x", "error: [launch] unknown option; got --tea" + unknown},
      {"--shutdown-timeout 1e300 echo x",
       "error: [launch] shutdown timeout; got 1e+300, expected a number of seconds from 0 to "
       "604800\n"},
      {"--shutdown-timeout nan echo x",
       "error: [launch] shutdown timeout; got nan, expected a number of seconds from 0 to "
       "604800\n"},
      {"--nnodes 1:3 echo x",
       "error: [launch] the launches have no common endpoint; got --nnodes 1:3 without "
       "--rdzv-endpoint, "
       "expected the host and port of one of them (on all machines the same: --rdzv-endpoint "
       "HOST:29400)\n"},
      {"--nnodes 3:1 --rdzv-endpoint here echo x",
       "error: [launch] --nnodes; got 3:1, expected N, or MIN:MAX with 1 <= MIN <= MAX <= "
       "100000\n"},
      {"--rdzv-endpoint here:port echo x",
       "error: [cluster] rendezvous endpoint; got \"here:port\", expected HOST or HOST:PORT with a "
       "port from 1 to 65535 (an IPv6 address is written in brackets)\n"},
      {"--nnodes 2 --master-addr here --max-restarts 1 echo x",
       "error: [cluster] restarts; got 1 with 2 nodes, expected one node (use --rdzv-endpoint, "
       "with which launches of several nodes restart together)\n"},
  };
  for (const auto& [arguments, message] : rows) {
    SCOPED_TRACE(arguments);
    const auto outcome = launch(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err, message);
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(Launch, RanksLeaveFlightRecordsBesideTheirLogs) {
  const TemporaryFolder temporary;
  const auto outcome =
      run_program("exec env -u TROIKA_FLIGHT_RECORD TMPDIR=" + temporary.path().string() +
                  " " TROIKA_PROGRAM " launch -n 5 " TROIKA_FAILING_RANK " throw");
  EXPECT_NE(outcome.exit_code, 0);
  const auto entries = std::filesystem::directory_iterator(temporary.path());
  const std::vector<std::filesystem::path> folders(begin(entries), end(entries));
  ASSERT_EQ(folders.size(), 1U);
  EXPECT_EQ(std::filesystem::status(folders[0]).permissions(), std::filesystem::perms::owner_all);
  for (const int rank : {0, 2, 3, 4}) {
    const auto name = "world-rank" + std::to_string(rank) + ".json";
    EXPECT_TRUE(std::filesystem::exists(folders[0] / "flight-record" / name)) << name;
  }
}

TEST(Launch, NamesTheRankThatLeftWithExitCodeZero) {
  const auto outcome = launch("-n 5 " TROIKA_FAILING_RANK " exit");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_EQ(outcome.orphans, 0);
  EXPECT_THAT(outcome.err, HasSubstr("[cluster] rank 1 ended with exit code 0 before it had left "
                                     "the run; others failed because of it\n"));
}

}  // namespace
}  // namespace troika
