#include "troika/layout/cluster.h"

#include <gmock/gmock.h>

#include "tests/layout/cluster_levels.h"
#include "tests/support/errors.h"

namespace troika::layout {
namespace {

constexpr const char* kText = R"([links.group]
latency = 2e-06
bandwidth = 12e10

[links.network]
latency = 5e-6
bandwidth = 12500000000  # a whole number will do

[[devices]]
host = "node-1"
count = 2
memory_bytes = 42949672960
flops = 19.5e12

[[devices]]
host = "node-1"
group = 1
[[devices]]
host = "node \"2\""
count = 4
)";

TEST(Cluster, KnowsHowNearDevicesAre) {
  const auto cluster = Cluster::parse(kText, "cluster.toml");
  EXPECT_THAT(cluster.hosts, testing::ElementsAre("node-1", "node \"2\""));
  ASSERT_EQ(cluster.ranks(), 7);
  EXPECT_EQ(cluster.devices_of(1).memory_bytes, int64_t{40} << 30);
  EXPECT_EQ(cluster.devices_of(1).flops, 19.5e12);
  EXPECT_EQ(cluster.devices_of(2).memory_bytes, 0);
  EXPECT_EQ(cluster.devices_of(6).host, 1);
  EXPECT_THROW(cluster.devices_of(7), CheckError);
  EXPECT_EQ(level_between(cluster, 0, 1), Level::group);
  EXPECT_EQ(level_between(cluster, 0, 2), Level::host);
  EXPECT_EQ(level_between(cluster, 2, 3), Level::network);
  EXPECT_EQ(link_between(cluster, 0, 1), (Link{2e-6, 12e10}));
  EXPECT_EQ(link_between(cluster, 0, 2), Link());
  EXPECT_EQ(link_between(cluster, 0, 6), (Link{5e-6, 12.5e9}));
}

TEST(Cluster, TextRoundTrips) {
  auto cluster = Cluster::parse(kText, "cluster.toml");
  // Ranks may be on alternating hosts.
  cluster.devices.push_back({.host = 0, .group = 2, .memory_bytes = 5, .flops = 100.0 / 3});
  EXPECT_EQ(Cluster::parse(cluster.text(), "again"), cluster) << cluster.text();
  const auto uniform = Cluster::uniform(2, 3);
  EXPECT_EQ(Cluster::parse(uniform.text(), "again"), uniform) << uniform.text();
  EXPECT_EQ(level_between(uniform, 2, 3), Level::network);
}

TEST(Cluster, HostsWithoutDevicesAreSpare) {
  const auto text = std::string(kText) + "[[devices]]\nhost = \"cpu-1\"\ncount = 0\n";
  const auto cluster = Cluster::parse(text, "cluster.toml");
  EXPECT_EQ(cluster.ranks(), 7);
  EXPECT_THAT(cluster.hosts, testing::SizeIs(2));
  EXPECT_THAT(cluster.spares, testing::ElementsAre("cpu-1"));
  EXPECT_EQ(Cluster::parse(cluster.text(), "again"), cluster) << cluster.text();
  EXPECT_ERROR(Cluster::parse(text + "[[devices]]\nhost = \"cpu-1\"\n", "c"), ErrorKind::usage,
               "[layout] devices.host (c:25); got cpu-1 with devices and with count 0, expected "
               "devices, or one row with count 0");
}

TEST(Cluster, HostsMayHaveTheirOwnBandwidths) {
  const auto text = std::string(kText) +
                    "[[devices]]\nhost = \"cpu-1\"\ncount = 0\n"
                    "[[hosts]]\nhost = \"cpu-1\"\nbandwidth = 1e9\n"
                    "[[hosts]]\nhost = \"node-1\"\nbandwidth = 25e8\n";
  const auto cluster = Cluster::parse(text, "cluster.toml");
  EXPECT_EQ(cluster.network_of("node-1"), (Link{5e-6, 2.5e9}));
  EXPECT_EQ(cluster.network_of("node \"2\""), (Link{5e-6, 12.5e9}));
  EXPECT_EQ(cluster.network_of("cpu-1"), (Link{5e-6, 1e9}));
  EXPECT_EQ(Cluster::parse(cluster.text(), "again"), cluster) << cluster.text();
  const auto refused = [&](const std::string& row, const std::string& why) {
    EXPECT_ERROR(Cluster::parse(text + row, "c"), ErrorKind::usage, "[layout] hosts" + why);
  };
  refused("[[hosts]]\nhost = \"cpu-2\"\nbandwidth = 1",
          ".host (c:31); got cpu-2, expected a host of [[devices]]");
  refused("[[hosts]]\nhost = \"cpu-1\"\nbandwidth = 1",
          ".host (c:31); got cpu-1 twice, expected one bandwidth of each host");
  refused("[[hosts]]\nhost = \"node \\\"2\\\"\"",
          ".bandwidth (c:30); got none, expected bytes a second, at least 1");
  refused("[[hosts]]\nhost = \"node-1\"\nbandwidth = -1",
          ".bandwidth (c:32); got -1, expected a number >= 0");
  EXPECT_ERROR(Cluster::parse("hosts = 3\n[[devices]]\nhost = \"a\"", "c"), ErrorKind::usage,
               "[layout] hosts (c:1); got a table, expected an array of tables ([[hosts]])");
}

TEST(Cluster, RefusesWhatIsNone) {
  const auto refused = [](const std::string& text) {
    try {
      Cluster::parse(text, "c.toml");
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return text + " was taken";
  };
  const std::string devices = "\n[[devices]]\nhost = \"a\"\n";
  EXPECT_EQ(refused(devices + "memory = 3"),
            "[layout] unknown key devices.memory (c.toml:4); expected one of host, count, "
            "group, memory_bytes, flops (did you mean memory_bytes?)");
  EXPECT_EQ(refused("[links.netwrok]" + devices),
            "[layout] unknown key links.netwrok (c.toml:1); expected one of group, host, "
            "network (did you mean network?)");
  EXPECT_THAT(
      refused("[links.host]\nspeed = 1.0" + devices),
      testing::StartsWith("[layout] unknown key links.host.speed (c.toml:2); expected one"));
  EXPECT_EQ(refused("[links.host]\nlatency = -1.0" + devices),
            "[layout] links.host.latency (c.toml:2); got -1.0, expected a number >= 0");
  EXPECT_EQ(refused("[links.host]\nlatency = nan" + devices),
            "[layout] links.host.latency (c.toml:2); got nan, expected a number >= 0");
  EXPECT_EQ(refused(devices + "count = 0"),
            "[layout] c.toml has no devices; expected a table [[devices]] with a host");
  EXPECT_EQ(refused(devices + "count = -1"),
            "[layout] devices.count (c.toml:4); got -1, expected an integer >= 0");
  EXPECT_EQ(refused(devices + "count = 100000000"),
            "[layout] devices.count (c.toml:4); got 100000000, expected at most 16384");
  EXPECT_EQ(refused(devices + "count = 16384" + devices + "count = 3"),
            "[layout] devices.count (c.toml:7); got 16387 devices in all, expected at most 16384");
  EXPECT_ERROR(Cluster::parse(kText, "c.toml", 6), ErrorKind::usage,
               "[layout] devices.count (c.toml:20); got 7 devices in all, expected at most 6");
  EXPECT_EQ(refused(devices + "group = 5000000000"),
            "[layout] devices.group (c.toml:4); got 5000000000, expected at most 2.14748e+09");
  EXPECT_EQ(refused(devices + "flops = \"fast\""),
            "[layout] devices.flops (c.toml:4); got 'fast', expected a number >= 0");
  EXPECT_EQ(refused("[[devices]]\ncount = 2"),
            "[layout] devices.host (c.toml:1); got no such key, expected a string");
  EXPECT_EQ(refused("devices = [1]"),
            "[layout] devices (c.toml:1); got 1, expected a table of keys");
  EXPECT_EQ(refused("links = 3" + devices),
            "[layout] links (c.toml:1); got 3, expected a table of keys");
  EXPECT_EQ(refused("[links.host]\nlatency = inf" + devices),
            "[layout] links.host.latency (c.toml:2); got inf, expected at most 1e+09");
  EXPECT_EQ(refused("[links.host]\nbandwidth = 1e-300" + devices),
            "[layout] links.host.bandwidth (c.toml:2); got 1e-300, expected at least 1, or 0: not "
            "known");
  EXPECT_EQ(refused(devices + "flops = inf"),
            "[layout] devices.flops (c.toml:4); got inf, expected at most 1e+18");
  EXPECT_EQ(refused("[devices]\nhost = \"a\""),
            "[layout] devices (c.toml:1); got a table, expected an array of tables ([[devices]])");
  EXPECT_EQ(refused(""),
            "[layout] c.toml has no devices; expected a table [[devices]] with a host");
  EXPECT_THAT(refused("[links"), testing::StartsWith("[layout] c.toml:1 is not TOML; got "));
}

}  // namespace
}  // namespace troika::layout
