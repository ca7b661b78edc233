// A rank's way to rank 0's server: connect, authenticate, say hello, wait until all ranks are
// there.
#pragma once

#include "troika/base/clock.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/run_secret.h"
#include "troika/cluster/wire.h"
#include "troika/net/descriptor.h"
#include "troika/net/record.h"

namespace troika::cluster {

// An authenticated connection.
struct Connected {
  net::Descriptor socket;  // nonblocking
  net::Session session;
  Decoder in = {};  // holds what came after the welcome
};

// Retries until the server is up. Returns once it has welcomed this rank, which it does when all
// are there; throws its refusal, or Error with what is wrong at `address:port`: within seconds
// another program, silence or another secret, at the deadline that nobody listens there.
Connected connect_to_server(const Environment& environment, const RunSecret& secret,
                            const std::string& address, int port, Deadline deadline);

// Sends all bytes; throws Error(cluster, timeout) at the deadline, Error(cluster, peer) when the
// connection has ended.
void send_all(int socket, std::string_view bytes, Deadline deadline);

}  // namespace troika::cluster
