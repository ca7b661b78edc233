#include "troika/base/processors.h"

#include <gmock/gmock.h>

#include <fstream>
#include <thread>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Processors of_a_new_thread() {
  Processors found;
  std::thread([&] { found = allowed_processors(); }).join();
  return found;
}

TEST(Processors, AreWrittenAsLinuxDoes) {
  for (const auto& [processors, text] : std::vector<std::pair<Processors, std::string>>{
           {{}, ""}, {{7}, "7"}, {{0, 1, 2, 5}, "0-2,5"}, {{0, 2, 3, 1030}, "0,2-3,1030"}}) {
    EXPECT_EQ(processors_text(processors), text);
    EXPECT_EQ(parse_processors(text), processors);
  }
  for (const char* text : {"x", "1-", "-1", "2-1", "1,1", "3,1", "1-2-3", "1,", "9999"}) {
    EXPECT_ERROR(
        parse_processors(text), ErrorKind::usage,
        std::string("[base] not a list of processors; got ") + text + ", expected one as 0-2,5");
  }
}

TEST(Processors, OfAThreadCanBeRestrictedAndGivenBack) {
  const auto all = allowed_processors();
  ASSERT_FALSE(all.empty());
  std::thread([&] {
    run_on({all.back()});
    EXPECT_THAT(allowed_processors(), ElementsAre(all.back()));
    EXPECT_THAT(of_a_new_thread(), ElementsAre(all.back())) << "inherited";
    run_on(all);
    EXPECT_EQ(allowed_processors(), all);
    try {
      run_on({});
      ADD_FAILURE() << "a thread that may run nowhere";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), HasSubstr("expected some of " + processors_text(all)));
    }
    EXPECT_EQ(allowed_processors(), all);
  }).join();
  EXPECT_EQ(allowed_processors(), all) << "of another thread";
}

// ThreadSanitizer starts threads with attributes of its own.
#ifndef __SANITIZE_THREAD__
TEST(Processors, OfNewThreadsNeedNotBeThoseOfTheirMaker) {
  const auto all = allowed_processors();
  ASSERT_GT(all.size(), 1u);
  std::thread([&] {
    run_on({all.front()});
    new_threads_run_on(all);
    EXPECT_EQ(of_a_new_thread(), all);
    new_threads_run_on({});
    EXPECT_THAT(of_a_new_thread(), ElementsAre(all.front()));
  }).join();
}
#endif

class CoresOf : public testing::Test {
 protected:
  void add(int processor, int package, int cache, int core) const {
    write(processor, "topology/physical_package_id", package);
    write(processor, "topology/core_id", core);
    write(processor, "cache/index3/id", cache);
  }
  void write(int processor, const std::string& file, int number) const {
    const auto path = folder_ / ("sys/devices/system/cpu/cpu" + std::to_string(processor)) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << number << "\n";
  }

  const TemporaryFolder folder_;
};

// Two packages of two cores with two hardware threads each, numbered as most machines do.
TEST_F(CoresOf, HaveTheirHardwareThreadsTogether) {
  for (int i = 0; i < 8; ++i) add(i, /*package=*/i % 4 / 2, /*cache=*/i % 4 / 2, /*core=*/i % 2);
  EXPECT_THAT(
      cores_of({0, 1, 2, 3, 4, 5, 6, 7}, folder_.path()),
      ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(cores_of({1, 3, 7}, folder_.path()), ElementsAre(ElementsAre(1), ElementsAre(3, 7)));
  EXPECT_THAT(cores_of({}, folder_.path()), IsEmpty());
}

TEST_F(CoresOf, StandByTheirCaches) {
  for (int i = 0; i < 4; ++i) add(i, /*package=*/0, /*cache=*/i % 2, /*core=*/i);
  EXPECT_THAT(cores_of({0, 1, 2, 3}, folder_.path()),
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1), ElementsAre(3)));
}

TEST_F(CoresOf, AreProcessorsWhereTheSystemDoesNotTell) {
  write(1, "topology/core_id", 0);
  write(3, "topology/core_id", 0);
  EXPECT_THAT(cores_of({0, 1, 2, 3}, folder_.path()),
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1, 3)));
}

}  // namespace
}  // namespace troika
