#include "troika/cluster/discovery/host_list.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/cluster/discovery/port.h"

namespace troika::cluster {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

TEST(HostList, Expands) {
  EXPECT_THAT(expand_hosts("host"), ElementsAre("host"));
  EXPECT_THAT(expand_hosts("n[1-3,7]"), ElementsAre("n1", "n2", "n3", "n7"));
  EXPECT_THAT(expand_hosts("jz[001-002]"), ElementsAre("jz001", "jz002"));
  EXPECT_THAT(expand_hosts("r[1-2]i[0-1]n4"), ElementsAre("r1i0n4", "r1i1n4", "r2i0n4", "r2i1n4"));
  EXPECT_THAT(expand_hosts("a,b[2-3],c"), ElementsAre("a", "b2", "b3", "c"));
  EXPECT_THAT(expand_hosts("n[08-11]x"), ElementsAre("n08x", "n09x", "n10x", "n11x"));
  EXPECT_THAT(expand_hosts("n[99-101]"), ElementsAre("n99", "n100", "n101"));
  EXPECT_THAT(expand_hosts("n[1-100000]"), SizeIs(100'000));
}

TEST(HostList, RefusesWhatIsNoList) {
  const std::vector<std::pair<std::string, std::string>> table{
      {"", "a host name on each side of every comma"},
      {"a,,b", "a host name on each side of every comma"},
      {"a,", "a host name on each side of every comma"},
      {"n[1-3", "a closing bracket after each \"[\""},
      {"n1-3]", "an opening bracket before each \"]\""},
      {"n[1-[2]]", "no bracket inside a bracket"},
      {"n[3-1]", "a range that counts up instead of \"3-1\""},
      {"n[]", "numbers a or a-b instead of \"\""},
      {"n[1-x]", "numbers a or a-b instead of \"1-x\""},
      {"n[-3]", "numbers a or a-b instead of \"-3\""},
      {"n[1,,2]", "numbers a or a-b instead of \"\""},
      {"n[0-99999999]", "at most 1000000 hosts"},
      {"n[0-9999][0-9999]", "at most 1000000 hosts"},
      {"n[99999999999999999999]", "numbers a or a-b instead of \"99999999999999999999\""},
  };
  for (const auto& [list, expected] : table) {
    EXPECT_ERROR(expand_hosts(list), ErrorKind::usage,
                 "[cluster] host list; got \"" + list + "\", expected " + expected +
                     " (for example n[1-3,07],login)");
  }
}

TEST(Counts, ExpandRunLengths) {
  EXPECT_THAT(expand_counts("4(x2),3"), ElementsAre(4, 4, 3));
  EXPECT_THAT(expand_counts("1"), ElementsAre(1));
  for (const std::string text : {"", "4(x2", "4(2)", "4(x0)", "a", "4,,3", "-1", "4(x2)3"}) {
    EXPECT_ERROR(expand_counts(text), ErrorKind::usage,
                 "[cluster] tasks per node; got \"" + text + "\", expected counts such as 4(x2),3");
  }
}

TEST(Port, OfAJobIsNeverEphemeralAndDiffersForNeighbours) {
  for (const PortRange range : {PortRange{32768, 60999}, PortRange{1024, 65000},
                                PortRange{15000, 65535}, PortRange{9000, 10001}}) {
    for (int64_t job = 0; job < 60'000; job += 97) {
      for (const int64_t step : {0, 1, 50}) {
        const int port = job_port(job, step, range);
        EXPECT_TRUE(port < range.low || port > range.high) << port;
        EXPECT_TRUE(port >= 10000 && port <= 65535) << port;
        EXPECT_EQ(port, job_port(job, step, range));
        EXPECT_NE(port, job_port(job + 1, step, range));
      }
    }
  }
  EXPECT_NE(job_port(1, 0), job_port(1, 1));
  EXPECT_ERROR(
      job_port(1, 0, {1024, 65535}), ErrorKind::usage,
      "[cluster] no port is left for the ranks' rendezvous; got ephemeral ports 1024-65535, "
      "expected ports outside them from 10000 to 65535 (set MASTER_PORT, or narrow "
      "net.ipv4.ip_local_port_range)");
}

TEST(Port, FreeOneIsOutsideTheEphemeralRange) {
  const auto [low, high] = ephemeral_range();
  for (int i = 0; i < 20; ++i) {
    const int port = free_port();
    EXPECT_TRUE(port >= 10000 && port <= 65535 && (port < low || port > high)) << port;
  }
}

}  // namespace
}  // namespace troika::cluster
