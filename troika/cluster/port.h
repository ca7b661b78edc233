// TCP ports for the control connection, always outside the range from which the kernel takes ports
// for outgoing connections: inside it, any connection of any program may hold the port already.
#pragma once

#include <cstdint>

namespace troika::cluster {

// Where ranks meet when neither MASTER_PORT nor a job id tells; torchrun's rendezvous default.
inline constexpr int kDefaultPort = 29400;

struct PortRange {
  int low, high;  // both inside
};

// /proc/sys/net/ipv4/ip_local_port_range, or the kernel's default where it cannot be read.
PortRange ephemeral_range();

// The port of a batch job's step: the same on every rank, different for neighbouring jobs, outside
// `ephemeral`. Throws Error(cluster, usage) when that range leaves no port.
int job_port(int64_t job, int64_t step, PortRange ephemeral = ephemeral_range());

// A port outside the ephemeral range that nobody listens on at this moment.
int free_port();

}  // namespace troika::cluster
