// A rank's way into its run: connect, authenticate, say hello, wait until all ranks are there.
#pragma once

#include <memory>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/connected.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/relay.h"
#include "troika/cluster/relay_plan.h"
#include "troika/cluster/run_secret.h"

namespace troika::cluster {

// Who joins, and where rank 0's server is.
struct Entrance {
  Environment environment;
  RunSecret secret;
  std::string address;
  int port = 0;
  RelayRules rules = {};
};

struct Joined {
  std::unique_ptr<Relay> relay;  // where this rank relays for others and itself
  Connected connection;          // to rank 0's server or a relay
  int relay_rank = 0;            // that relay's; 0 for none
  std::string relays;            // who relays for whom: pack_answers() of the relays' ranks
};

// Retries until the server is up. Returns once it has welcomed this rank, which it does when all
// are there; throws its refusal, or Error with what is wrong at its place: within seconds another
// program, silence or another secret, at the deadline that nobody listens there.
Joined join_run(const Entrance& entrance, Deadline deadline);

// For a rank whose relay has ended: goes to rank 0's server without one. Throws as join_run() does,
// at the first failure.
Joined come_back(const Entrance& entrance, Deadline deadline);

// Sends all bytes; throws Error(cluster, timeout) at the deadline, Error(cluster, peer) when the
// connection has ended.
void send_all(int socket, std::string_view bytes, Deadline deadline);

}  // namespace troika::cluster
