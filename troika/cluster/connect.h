// A rank's way into its run: connect, authenticate, say hello, wait until all ranks are there.
#pragma once

#include <memory>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/line.h"
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
  std::unique_ptr<Line> line;
  int relay_rank = 0;  // of the relay that it goes through, or this rank's own if it relays; else 0
  std::string relays;  // who relays for whom: pack_answers() of the relays' ranks
};

// Retries until the server is up. Returns once it has welcomed this rank, which it does when all
// are there; throws its refusal, or Error with what is wrong at its place: within seconds another
// program, silence or another secret, at the deadline that nobody listens there.
Joined join_run(const Entrance& entrance, Deadline deadline);

// For a rank whose relay has ended: goes to rank 0's server without one. Who relays for whom.
// Throws as join_run() does, at the first failure.
std::string come_back(const Entrance& entrance, Line& line, Deadline deadline);

}  // namespace troika::cluster
