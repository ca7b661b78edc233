// Hosts, devices and links as data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

// One direction between two devices. A bandwidth of 0 is not known.
struct Link {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes a second

  // Of a message; the latency where the bandwidth is not known.
  double seconds(double bytes) const { return latency + bytes * seconds_per_byte(); }
  // 0 where the bandwidth is not known.
  double seconds_per_byte() const { return bandwidth > 0 ? 1 / bandwidth : 0; }

  bool operator==(const Link&) const = default;
};

// How near two devices are: inside a group of devices of a host (NVLink, a socket), inside a host,
// or on two hosts.
enum class Level { group, host, network };

// Alike devices of one host, each of which computes for a rank; the ranks are consecutive.
struct Devices {
  int host = 0;  // an index of Cluster::hosts
  int count = 1;
  int group = 0;             // of devices inside the host
  int64_t memory_bytes = 0;  // of each; 0: not known
  double flops = 0;          // floating-point operations a second of each; 0: not known

  bool operator==(const Devices&) const = default;
};

// Text form, in TOML:
//
//   [links.network]        # also links.group and links.host
//   latency = 5e-06        # seconds
//   bandwidth = 12500000000  # bytes a second
//
//   [[devices]]            # in the order of ranks
//   host = "node-1"
//   count = 4              # 1 unless told
//   group = 0              # 0 unless told
//   memory_bytes = 42949672960
//   flops = 19500000000000
struct Cluster {
  std::vector<std::string> hosts = {};  // names that differ
  std::vector<Devices> devices = {};    // in the order of ranks
  Link group = {}, host = {}, network = {};

  // `count` devices on each of `hosts` hosts, of which nothing else is known.
  static Cluster uniform(int hosts, int count);
  // Reads the text form; `name` is the file's, for errors. Throws Error(usage) with the line for
  // what is no TOML, an unknown key (naming the nearest), a missing host, a value of another type,
  // and a number below its least; and where there is no device.
  static Cluster parse(std::string_view toml, std::string_view name);
  std::string text() const;

  int ranks() const;
  // The devices that this rank's is one of.
  const Devices& devices_of(int rank) const;
  // These describe the devices of two ranks.
  Level level_between(int one, int other) const;
  const Link& link_between(int one, int other) const;

  bool operator==(const Cluster&) const = default;
};

}  // namespace troika::layout
