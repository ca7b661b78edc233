// How a rank joins its run: it connects, authenticates, sends its hello and waits for all ranks.
#pragma once

#include <memory>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/line.h"
#include "troika/cluster/rendezvous/relay_plan.h"

namespace troika::cluster {

// The joining rank, and the address of rank 0's server.
struct Entrance {
  Environment environment;
  RunSecret secret;
  std::string address;
  int port = 0;
  RelayRules rules = {};
};

struct Joined {
  std::unique_ptr<Line> line;
  int relay_rank = 0;  // the rank of its relay, or its own rank if it relays; 0 without a relay
  std::string relays;  // which rank relays for which ranks, in pack_answers() format
};

// Makes the line of a joining rank, which is not connected yet. It has all of its descriptors but
// that of the connection.
std::unique_ptr<Line> make_line(const Entrance& entrance);

// Connects the line. Retries until the server is up. Returns once the server has welcomed this
// rank, after all ranks have arrived. Throws the server's refusal, or an Error with the cause.
// Another program, no answer or another secret are reported within seconds; an unreachable server
// is reported on the deadline.
Joined join_run(const Entrance& entrance, std::unique_ptr<Line> line, Deadline deadline);

// Reconnects a rank whose relay has ended directly to rank 0's server. Returns which rank relays
// for which ranks. Throws like join_run(), but on the first failure.
std::string come_back(const Entrance& entrance, Line& line, Deadline deadline);

}  // namespace troika::cluster
