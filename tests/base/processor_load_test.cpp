#include "troika/base/processor_load.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

class ProcessorLoad : public testing::Test {
 protected:
  ProcessorLoad() { std::filesystem::create_directories(folder_ / "proc/self"); }
  void write(const std::string& machine, const std::string& process) {
    write_file_atomically(folder_ / "proc/stat", machine);
    write_file_atomically(folder_ / "proc/self/stat", process);
  }
  const TemporaryFolder folder_;
};

TEST_F(ProcessorLoad, IsReadFromTheFilesOfTheSystem) {
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  // The guest's time, the last two numbers, is in that of user and nice.
  write("cpu  100 20 30 400 50 6 7 8 99 9\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 1\nintr 5 6\n",
        "12 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 31 11 14 15\n");
  const auto times = processor_times(folder_.path());
  EXPECT_EQ(times.processors, 2);
  EXPECT_DOUBLE_EQ(times.all * ticks, 621);
  EXPECT_DOUBLE_EQ(times.busy * ticks, 171);
  EXPECT_DOUBLE_EQ(times.own * ticks, 42);
  write("cpu  100 20\n", "12 (a) R");
  EXPECT_ERROR(processor_times(folder_.path()), ErrorKind::failure,
               "[base] the times of processors in /proc cannot be read; got a short line, expected "
               "the files of proc(5)");
  write("cpu  100 20 x 1 1 1 1 1\n", "");
  EXPECT_THROW(processor_times(folder_.path()), Error);
}

TEST_F(ProcessorLoad, OfThisMachineGrows) {
  const auto before = processor_times();
  EXPECT_GE(before.processors, 1);
  EXPECT_GT(before.busy, 0);
  EXPECT_LE(before.busy, before.all);
  EXPECT_GE(before.busy, before.own);
  EXPECT_GE(processor_times().all, before.all);
}

// Adds readings, of two processors, by hand.
class Readings {
 public:
  // In `seconds` others have used this share of the processors, and this process the other one.
  void pass(double seconds, double others, double own) {
    now_.all += seconds * now_.processors;
    now_.busy += seconds * now_.processors * (others + own);
    now_.own += seconds * now_.processors * own;
  }
  ProcessorTimes now_{.processors = 2, .all = 1000, .busy = 900, .own = 100};
};

TEST(LoadOfOthers, CountsNeitherThisProcessNorASingleCalmReading) {
  Readings readings;
  LoadOfOthers load(.25, [&] { return readings.now_; });
  EXPECT_FALSE(load.is_above());
  const auto read = [&](double others, double own) {
    readings.pass(3, others, own);
    return load.is_above();
  };
  EXPECT_FALSE(read(.2, .8));
  EXPECT_NEAR(load.latest(), .2, 1e-9);
  EXPECT_TRUE(read(.3, .5));
  EXPECT_NEAR(load.latest(), .3, 1e-9);
  EXPECT_TRUE(read(.1, 0));
  EXPECT_TRUE(read(.1, 0));
  EXPECT_TRUE(read(.5, 0));
  EXPECT_TRUE(read(.1, 0));
  EXPECT_TRUE(read(.1, 0));
  EXPECT_FALSE(read(.1, 0));
  EXPECT_TRUE(read(1, 0));
}

TEST(LoadOfOthers, IsThatOfTwoSecondsAtLeast) {
  Readings readings;
  LoadOfOthers load(.25, [&] { return readings.now_; });
  EXPECT_FALSE(load.is_above());
  readings.pass(1, 1, 0);
  EXPECT_FALSE(load.is_above());
  readings.pass(3, 0, 0);
  EXPECT_FALSE(load.is_above());
  EXPECT_NEAR(load.latest(), .25, 1e-9);
}

}  // namespace
}  // namespace troika
