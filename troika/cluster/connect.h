// A rank's way to rank 0's server: connect, greet, say hello, wait until all ranks are there.
#pragma once

#include "troika/base/clock.h"
#include "troika/cluster/descriptor.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/wire.h"

namespace troika::cluster {

struct Connected {
  Descriptor socket;  // nonblocking
  Decoder in;         // holds what came after the welcome
};

// Retries until the server is up. Returns once it has welcomed this rank, which it does when all
// are there; throws its refusal, or Error with what is wrong at `address:port`: within seconds what
// waiting cannot mend, at the deadline that nobody listens there.
Connected connect_to_server(const Environment& environment, const std::string& address, int port,
                            Deadline deadline);

// Sends all bytes; throws Error(cluster, timeout) at the deadline, Error(cluster, peer) when the
// connection has ended.
void send_all(int socket, std::string_view bytes, Deadline deadline);

}  // namespace troika::cluster
