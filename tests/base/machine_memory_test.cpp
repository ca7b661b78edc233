#include "troika/base/machine_memory.h"

#include <gmock/gmock.h>

#include <fstream>

#include "troika/base/temporary_folder.h"

namespace troika::memory {
namespace {

class MachineMemory : public testing::Test {
 protected:
  MachineMemory() { write("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable:   1000 kB\n"); }

  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << text;
  }
  Available found() const { return available(folder_.path()).value(); }

  const TemporaryFolder folder_;
};

TEST_F(MachineMemory, IsTheMachinesWithoutLimits) {
  EXPECT_EQ(found().bytes, 1000 * 1024);
  EXPECT_EQ(found().limit, "this machine's memory");
  write("proc/self/cgroup", "0::/job/step\n4:memory:/\nnonsense\n");
  write("sys/fs/cgroup/job/step/memory.max", "max\n");
  write("sys/fs/cgroup/job/step/memory.current", "5\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(found().bytes, 1000 * 1024);
}

TEST_F(MachineMemory, IsTheLeastThatACgroupAboveLeaves) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "900000\n");
  write("sys/fs/cgroup/job/step/memory.current", "100000\n");
  EXPECT_EQ(found().bytes, 800'000);
  write("sys/fs/cgroup/job/memory.max", "600000\n");
  write("sys/fs/cgroup/job/memory.current", "500000\n");
  write("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 40000\nactive_file 7\n");
  EXPECT_EQ(found().bytes, 140'000) << "cached files make room";
  EXPECT_EQ(found().limit, "the limit of cgroup /job");
  write("sys/fs/cgroup/job/memory.max", "400000\n");
  EXPECT_EQ(found().bytes, 0);
}

TEST_F(MachineMemory, UnderstandsTheFirstVersionOfCgroups) {
  write("proc/self/cgroup", "9:cpu,memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "300000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "100000\n");
  write("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n");
  EXPECT_EQ(found().bytes, 250'000);
}

TEST_F(MachineMemory, IsNotKnownWhereTheSystemDoesNotTell) {
  const TemporaryFolder empty;
  EXPECT_FALSE(available(empty.path()));
}

TEST(ThisMachinesMemory, IsTold) {
  EXPECT_GT(available().value().bytes, 0);
  EXPECT_GT(resident(), 0);
}

}  // namespace
}  // namespace troika::memory
