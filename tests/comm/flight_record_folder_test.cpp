// The folder for flight records if none was given. The ranks are processes.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/diagnostics/flight_report.h"

namespace troika::comm {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 5;

std::string record_name(int rank) {
  return fmt::format("world-rank{}.json", rank);
}

void expect_records_of_all_ranks(const fs::path& folder) {
  std::vector<std::string> names, expected;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  for (int rank = 0; rank < kRanks; ++rank) expected.push_back(record_name(rank));
  EXPECT_THAT(names, testing::UnorderedElementsAreArray(expected));
  EXPECT_THAT(flight_report(folder), testing::HasSubstr("rank 1"));
}

TEST(FlightRecordFolder, IsOneThatOtherUsersCannotGuessOrRead) {
  const TemporaryFolder temporary, home;
  fs::permissions(temporary.path(), fs::perms::all | fs::perms::sticky_bit);
  write_file_atomically(home / "victim", "precious");
  // Another user has made links at the place of a folder named after the run.
  const auto planted = temporary / "troika-flight-record-a-run";
  fs::create_directory(planted);
  for (int rank = 0; rank < kRanks; ++rank) {
    fs::create_symlink(home / "victim", planted / record_name(rank));
  }
  // The ranks call different collectives.
  const auto job = testing_support::run_program(fmt::format(
      "env -u TROIKA_FLIGHT_RECORD TMPDIR={} TORCHELASTIC_RUN_ID=a-run OMP_NUM_THREADS=1 "
      "{} 1 {} {} shm mismatch",
      temporary.path().string(), TROIKA_START_RANKS, kRanks, TROIKA_COMM_RANKS));
  ASSERT_EQ(job.exit_code, 0) << job.out << job.err;
  EXPECT_EQ(read_file(home / "victim"), "precious");
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(fs::is_symlink(planted / record_name(rank)));
  }
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(temporary.path())) {
    if (entry.path() != planted) folders.push_back(entry.path());
  }
  ASSERT_EQ(folders.size(), 1U) << testing::PrintToString(folders);
  EXPECT_EQ(fs::status(folders[0]).permissions(), fs::perms::owner_all);
  EXPECT_THAT(job.out + job.err, testing::HasSubstr(folders[0].string()));
  expect_records_of_all_ranks(folders[0]);
}

TEST(FlightRecordFolder, ThatCannotBeMadeLeavesTheErrorAsItIs) {
  const TemporaryFolder temporary;
  const auto job = testing_support::run_program(fmt::format(
      "env -u TROIKA_FLIGHT_RECORD TMPDIR={}/none TORCHELASTIC_RUN_ID=a-run OMP_NUM_THREADS=1 "
      "{} 1 {} {} shm mismatch",
      temporary.path().string(), TROIKA_START_RANKS, kRanks, TROIKA_COMM_RANKS));
  // Each rank checks its error.
  EXPECT_EQ(job.exit_code, 0) << job.out << job.err;
  EXPECT_THAT(job.out + job.err, testing::Not(testing::HasSubstr("flight record")));
  EXPECT_TRUE(fs::is_empty(temporary.path()));
}

}  // namespace
}  // namespace troika::comm
