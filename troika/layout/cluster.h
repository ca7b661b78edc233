// A description of hosts, devices and links.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

// One direction of a link between two devices. A bandwidth of 0 means unknown.
struct Link {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes per second

  // Returns the time of a message; only the latency if the bandwidth is unknown.
  double seconds(double bytes) const { return latency + bytes * seconds_per_byte(); }
  // 0 if the bandwidth is unknown.
  double seconds_per_byte() const { return bandwidth > 0 ? 1 / bandwidth : 0; }

  bool operator==(const Link&) const = default;
};

// Returns a link with the longer latency, and with the lower of the bandwidths that are known.
inline Link slower(const Link& one, const Link& other) {
  const bool is_other = other.seconds_per_byte() > one.seconds_per_byte();
  return {std::max(one.latency, other.latency), is_other ? other.bandwidth : one.bandwidth};
}

// The closest level that two devices share: a group of devices of a host (NVLink, a socket), a
// host, or only the network.
enum class Level { group, host, network };

// Identical devices of one host with consecutive ranks, one rank per device.
struct Devices {
  int host = 0;  // an index into Cluster::hosts
  int count = 1;
  int group = 0;             // number of the device group within the host
  int64_t memory_bytes = 0;  // of each device; 0: unknown
  double flops = 0;          // floating-point operations per second of each device; 0: unknown

  bool operator==(const Devices&) const = default;
};

// The largest number of devices of a cluster's file, which bounds the time and memory of a
// simulation.
inline constexpr int kMostDevices = 16'384;

// The devices of a cluster, and its links by level. Text form, in TOML:
//
//   [links.network]        # also links.group and links.host
//   latency = 5e-06        # seconds
//   bandwidth = 12500000000  # bytes a second
//
//   [[hosts]]              # hosts whose links to the network have other bandwidths
//   host = "node-1"
//   bandwidth = 1250000000
//
//   [[devices]]            # in the order of ranks
//   host = "node-1"
//   count = 4              # default: 1; 0: a spare host, for a summation server
//   group = 0              # default: 0
//   memory_bytes = 42949672960
//   flops = 19500000000000
struct Cluster {
  std::vector<std::string> hosts = {};  // names are unique
  std::vector<Devices> devices = {};    // in the order of ranks
  // Hosts without devices, which can have servers; others than `hosts`.
  std::vector<std::string> spares = {};
  Link group = {}, host = {}, network = {};
  // Bytes per second of the links to the network of these hosts and spare hosts, by name; > 0. The
  // others have that of `network`.
  std::map<std::string, double> host_bandwidths = {};

  // Returns `count` devices on each of `hosts` hosts, with everything else unknown.
  static Cluster uniform(int hosts, int count);
  // Reads the text form; `name` is the file's name, for errors. Throws Error(usage) with the line
  // for invalid TOML, an unknown key (naming the nearest known one), a missing host, a value of the
  // wrong type, a number out of its range, more devices than `most` in all, a spare host with
  // devices, and a bandwidth of a host that is not there or has one; also if there is no device.
  static Cluster parse(std::string_view toml, std::string_view name, int most = kMostDevices);
  std::string text() const;

  int ranks() const;
  // Returns the entry of `devices` that contains this rank.
  const Devices& devices_of(int rank) const;
  // Returns the link between a host or spare host of this name and the network.
  Link network_of(const std::string& name) const;

  bool operator==(const Cluster&) const = default;
};

}  // namespace troika::layout
