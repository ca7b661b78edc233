// TCP ports for the control connection. They are outside the kernel's ephemeral range, where any
// outgoing connection may already use the port.
#pragma once

#include <cstdint>

namespace troika::cluster {

// The port of rank 0's rendezvous if neither MASTER_PORT nor a job id defines one; torchrun's
// default.
inline constexpr int kDefaultPort = 29400;

struct PortRange {
  int low, high;  // both inclusive
};

// Reads /proc/sys/net/ipv4/ip_local_port_range; the kernel's default if it cannot be read.
PortRange ephemeral_range();

// Returns the port for a batch job's step: the same on every rank, different for neighbouring jobs,
// and outside `ephemeral`. Throws Error(cluster, usage) if no port is outside that range.
int job_port(int64_t job, int64_t step, PortRange ephemeral = ephemeral_range());

// Returns a port outside the ephemeral range that is currently free.
int free_port();

}  // namespace troika::cluster
