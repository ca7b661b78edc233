// Connections inside a machine. Beside a TCP port, an endpoint listens at a Unix socket whose name
// in the abstract namespace contains the port. Bytes through it pass no network stack, which takes
// much of the time (docs/benchmarks.md).
#pragma once

#include <string>

#include "troika/net/descriptor.h"

namespace troika::net {

// Returns a nonblocking listening socket; an invalid descriptor if another process of this network
// namespace has taken the name.
Descriptor listen_locally(int port);

// Returns a nonblocking socket that is connected to the process of this user that listens at the
// port of this machine. Returns an invalid descriptor if there is none, or if `host` is another
// machine. The process may listen at another address than `host`, so it must prove who it is.
// Name resolution may block.
Descriptor connect_locally(const std::string& host, int port);

}  // namespace troika::net
