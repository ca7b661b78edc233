// A rank that passes on what ranks of its machine and rank 0's server say to each other, so that
// the server has one connection for all of them. Those ranks, the relay's own among them, talk to
// it as they would to the server.
#pragma once

#include <thread>

#include "troika/cluster/connected.h"
#include "troika/cluster/run_secret.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

// Where a relay listens: on the loopback interface alone.
struct RelayPort {
  net::Descriptor listener;
  int port = 0;
};
RelayPort open_relay_port();

class Relay {
 public:
  // Serves until destroyed, on a thread of its own. `uplink` leads to rank 0's server, which has
  // been told of the port.
  Relay(RelayPort here, const RunSecret& secret, int world_size, Connected uplink);
  // Waits at most a second for the ranks to leave; the others come back to rank 0's server.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

 private:
  net::Waker stop_;
  std::thread thread_;
};

}  // namespace troika::cluster
