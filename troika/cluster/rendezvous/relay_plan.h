// The choice of ranks that relay for others, so that rank 0 does not need a connection to every
// rank: the rules, without sockets.
//
// The first rank that arrives from a machine relays for the next ranks of that machine, up to
// `ranks_each`. The rank after those becomes the machine's next relay. Relays and their ranks
// connect over the loopback interface.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "troika/cluster/rendezvous/wire.h"

namespace troika::cluster {

struct RelayRules {
  int from_world_size = 65;  // smaller worlds have no relays
  int ranks_each = 32;       // including the relay
};

// Returns the maximum number of connections of rank 0's server once all ranks have joined.
// `machines` is -1 if unknown.
int most_connections(const RelayRules& rules, int world_size, int machines);

class RelayPlan {
 public:
  explicit RelayPlan(RelayRules rules) : rules_(rules) {}

  enum class Role { direct, relay, through };
  struct Place {
    Role role = Role::direct;
    int relay = -1;  // for Role::through: the relay's rank, port and endpoint name
    int port = 0;
    std::string endpoint = {};
  };
  // Assigns the role of a rank whose endpoint `endpoint` has sent its hello.
  Place place(const Hello& hello, const std::string& endpoint);

 private:
  struct Relay {
    int rank, port;
    std::string endpoint;
    int ranks;
  };

  RelayRules rules_;
  std::map<std::string, Relay> latest_;  // by machine
};

}  // namespace troika::cluster
